import json

import grain
import pytest

from jigsaw_jax import settings
from jigsaw_jax.data.byte_tokenizer import ByteTokenizer
from jigsaw_jax.data.reasoning_gym import ReasoningGymRows
from jigsaw_jax.data.rows import JsonlRows, shuffled_order, split
from jigsaw_jax.data.source import open_source


def _jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _open(path, *, name="train", seed=0, held_out=0, **data):
    return open_source(
        settings.Data(source="jsonl", path=path, held_out=held_out, **data),
        pipeline="main",
        tokenizer=ByteTokenizer(),
        split=name,
        seed=seed,
    )


@pytest.fixture
def ten(tmp_path):
    rows = [{"prompt": f"p{i}", "answer": str(i)} for i in range(10)]
    return _jsonl(tmp_path / "ten.jsonl", rows)


def _uids(source, positions):
    return [source.prompt(position).uid for position in positions]


def test_every_epoch_has_every_row_once_in_an_order_of_its_own(ten):
    source = _open(ten)
    epochs = [_uids(source, range(10 * e, 10 * e + 10)) for e in range(3)]
    for e, uids in enumerate(epochs):
        assert sorted(uids) == sorted(f"main/{row}/{e}" for row in range(1, 11))
    orders = {tuple(uid.split("/")[1] for uid in uids) for uids in epochs}
    assert len(orders) == 3


@pytest.mark.parametrize("size", [1, 10])
def test_the_order_is_that_of_grains_own_data_set(size, tmp_path):
    rows = [{"prompt": f"p{i}", "answer": str(i)} for i in range(size)]
    source = _open(_jsonl(tmp_path / "rows.jsonl", rows), seed=3)
    assert source._shuffle_seed is not None
    ids = [str(i + 1) for i in range(size)]
    dataset = grain.MapDataset.source(ids).shuffle(seed=source._shuffle_seed).repeat()
    expected = [f"main/{dataset[p]}/{p // size}" for p in range(5 * size)]
    assert _uids(source, range(5 * size)) == expected


@pytest.mark.parametrize("position", [8, 9, 10, 11])
def test_a_source_opened_anew_goes_on_at_any_position(ten, position):
    straight = _uids(_open(ten), range(30))
    ahead = range(position, position + 5)
    # Asked out of order, by a source that saw nothing before.
    resumed = _open(ten)
    again = dict(zip(reversed(ahead), _uids(resumed, reversed(ahead)), strict=True))
    assert [again[p] for p in ahead] == straight[position : position + 5]


def test_neighbouring_seeds_are_not_shifted_copies(ten):
    # Grain adds the epoch to the seed: epoch 1 of seed 0 must not be epoch 0 of seed 1.
    def rows(seed, start):
        uids = _uids(_open(ten, seed=seed), range(start, start + 10))
        return [uid.split("/")[1] for uid in uids]

    assert rows(0, 10) != rows(1, 0)


def test_splits_share_no_text_and_other_seeds_hold_out_the_same(tmp_path):
    rows = [{"prompt": f"p{i % 6}", "answer": "1"} for i in range(12)]
    path = _jsonl(tmp_path / "doubles.jsonl", rows)

    def texts(name, seed):
        source = _open(path, name=name, held_out=2, seed=seed)
        return [source.prompt(i).text for i in range(len(source))]

    held_out, train = texts("held_out", 0), texts("train", 0)
    assert len(set(held_out)) == len(held_out) == 2
    assert set(held_out).isdisjoint(train)
    # Each of the four other texts stays two rows; the held-out texts' twins are gone.
    assert len(train) == 8
    assert texts("held_out", 7) == held_out


def test_appended_rows_leave_the_held_out_order_of_the_others(tmp_path):
    rows = [{"prompt": str(i), "answer": "1"} for i in range(20)]
    short = JsonlRows(_jsonl(tmp_path / "a.jsonl", rows[:15]), task="x")
    long = JsonlRows(_jsonl(tmp_path / "b.jsonl", rows), task="x")
    assert [i for i in shuffled_order(long, 3) if i < 15] == shuffled_order(short, 3)
    assert shuffled_order(long, 3) != shuffled_order(long, 4)


def test_too_small_a_task_to_hold_out_from_is_an_error():
    with pytest.raises(ValueError, match="3 distinct problems"):
        split(["a", "b", "c", "a"], range(4), 3)
    assert split(["a", "b", "c", "a"], range(4), 2) == ([0, 1], [2])
    assert split(["a", "b"], range(2), 0) == ([], [0, 1])


def test_an_empty_held_out_split_has_length_0(ten):
    source = _open(ten, name="held_out")
    assert len(source) == 0
    with pytest.raises(IndexError, match="split of 0"):
        source.prompt(0)


def test_same_text_with_other_metadata_stays_two_rows(tmp_path):
    rows = [{"prompt": "p", "answer": "1", "metadata": {"n": n}} for n in (1, 2)]
    source = _open(_jsonl(tmp_path / "two.jsonl", rows))
    assert {source.prompt(i).metadata["n"] for i in range(2)} == {1, 2}
    assert len(set(_uids(source, range(2)))) == 2


def test_an_answer_of_lists_and_objects_is_kept_as_json(tmp_path):
    tests = {"inputs": ["\u00e9"], "outputs": ["2"]}
    rows = [{"prompt": "p", "answer": tests}]
    prompt = _open(_jsonl(tmp_path / "x.jsonl", rows)).prompt(0)
    assert json.loads(prompt.answer) == tests


def test_a_row_names_its_id_task_and_whole_number_answer(tmp_path):
    row = {"prompt": "{x} p", "answer": 7, "id": "q/1", "task": "gcd"}
    source = _open(_jsonl(tmp_path / "one.jsonl", [row]), template="<{prompt}>")
    prompt = source.prompt(3)
    assert (prompt.uid, prompt.answer, prompt.task) == ("main/q/1/3", "7", "gcd")
    assert prompt.text == "<{x} p>"
    assert prompt.tokens == (256, *b"<{x} p>")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Expecting property name"),
        ("[1]", "must be a JSON object"),
        ('{"prompt": "p"}', "answer must be text"),
        ('{"prompt": "p", "answer": 0.5}', "answer must be text or a whole number"),
        ('{"prompt": "p", "answer": true}', "answer must be text"),
        ('{"prompt": "p", "answer": "1", "anwser": "2"}', "fields must be"),
        ('{"prompt": "p", "answer": "1", "metadata": 3}', "metadata must be"),
        ('{"prompt": "p", "answer": "1", "id": "a"}', "id must be unique"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path, line, message):
    path = tmp_path / "bad.jsonl"
    first = '{"prompt": "p", "answer": "1", "id": "a"}'
    path.write_text(f"{first}\n\n{line}\n")
    with pytest.raises(ValueError, match=message) as error:
        _open(str(path))
    assert str(error.value).startswith(f"{path}:3: ")


def test_a_question_pattern_keeps_the_core_and_must_match(tmp_path):
    rows = [{"prompt": "State the answer: 4 + 3 =", "answer": "7"}]
    path = _jsonl(tmp_path / "one.jsonl", rows)
    assert _open(path, question=": (.*)").prompt(0).text == "4 + 3 ="
    with pytest.raises(ValueError, match=r"Data.question must match"):
        _open(path, question="(x)").prompt(0)


def test_a_pair_ends_with_eos(ten):
    source = _open(ten)
    prompt = source.prompt(4)
    tokens, solution = source.pair(4, "= {answer}.")
    assert tokens == prompt.tokens
    assert solution == (*f"= {prompt.answer}.".encode(), 257)


def test_random_bytes_are_exactly_as_long_as_asked():
    data = settings.Data(source="random_bytes", size=20, held_out=5, prompt_tokens=32)
    sources = [
        open_source(
            data, pipeline="b", tokenizer=ByteTokenizer(), split=split_name, seed=0
        )
        for split_name in ("train", "held_out")
    ]
    assert [len(source) for source in sources] == [20, 5]
    prompts = [s.prompt(i) for s in sources for i in range(len(s))]
    assert {len(prompt.tokens) for prompt in prompts} == {32}
    assert len({prompt.text for prompt in prompts}) == 25
    for prompt in prompts:
        assert prompt.text.islower()
        assert prompt.tokens[0] == 256


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


OPTIONS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def test_reasoning_gym_problems_are_made_once_and_split_by_question(cache):
    data = settings.Data(
        options=OPTIONS, size=300, held_out=40, question=": (.*)", seed=1
    )

    def source(name):
        return open_source(
            data, pipeline="main", tokenizer=ByteTokenizer(), split=name, seed=0
        )

    train, held_out = source("train"), source("held_out")
    texts = [[s.prompt(i).text for i in range(len(s))] for s in (train, held_out)]
    assert set(texts[0]).isdisjoint(texts[1])
    assert len(set(texts[1])) == 40
    prompt = train.prompt(0)
    assert prompt.metadata["expression"] + " =" == prompt.text
    (file,) = cache.rglob("*.jsonl")
    # A damaged cache is made again, to the same bytes; a whole one is read.
    text = file.read_bytes()
    file.write_bytes(text[:100])
    assert source("train").prompt(0) == prompt
    assert file.read_bytes() == text
    edited = text.replace(b'"answer": "', b'"answer": "x')
    file.write_bytes(edited)
    assert source("train").prompt(0).answer == "x" + prompt.answer


def test_unknown_tasks_and_options_are_refused_with_a_hint(cache):
    with pytest.raises(ValueError, match="near it: chain_sum"):
        ReasoningGymRows("chain_sums", options={}, seed=0, size=3)
    with pytest.raises(ValueError, match="min_term"):
        ReasoningGymRows("chain_sum", options={"min_term": 2}, seed=0, size=3)
    with pytest.raises(ValueError, match=r"Data.size"):
        ReasoningGymRows("chain_sum", options={"size": 2}, seed=0, size=3)
    assert not list(cache.rglob("*.jsonl"))
