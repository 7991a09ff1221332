from jigsaw_jax.schedule import lengths
from jigsaw_jax.schedule.lengths import Lengths


def test_the_mean_leans_to_what_came_last():
    found = Lengths()
    assert found.estimate("p") is None
    found.add("p", 100)
    assert found.estimate("p") == 100
    found.add("p", 200)
    assert found.estimate("p") == 125
    found.add("q", 8)
    assert (found.estimate("p"), found.estimate("q")) == (125, 8)


def test_epochs_of_a_prompt_share_what_is_known_and_rows_do_not():
    found = Lengths()
    found.add("main/7/0", 40)
    assert found.estimate("main/7/3") == 40
    assert found.estimate("main/8/0") is None
    # Another form of uid may end in the row.
    found.add("sim/7", 50)
    assert found.estimate("sim/8") is None


def test_what_was_longest_unheard_of_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(lengths, "PROMPTS_MAX", 2)
    found = Lengths()
    for uid in ("p", "q", "p", "r"):
        found.add(uid, 10)
    assert [uid for uid in "pqr" if found.estimate(uid)] == ["p", "r"]
