import pathlib
import queue

import pytest

from jigsaw_jax import config, settings
from jigsaw_jax.config import places
from jigsaw_jax.records import Prompt
from jigsaw_jax.reward.function import FunctionError, load_function, why_unusable
from jigsaw_jax.reward.pool import RewardPool
from jigsaw_jax.reward.score import score

ROOT = pathlib.Path(__file__).parents[2]
PROMPT = Prompt(uid="u", tokens=(), text="p", answer="ab", task="t", metadata={"k": 2})
SOURCE = """
import dataclasses

@dataclasses.dataclass
class Count:
    value: int

def good(text, prompt):
    return Count(text.count(prompt.answer) * prompt.metadata["k"]).value

def kind(text, prompt):
    return {"none": None, "text": "1", "nan": float("nan"), "true": True}[text]

def writes(text, prompt):
    open("here.txt", "w")

def hangs(text, prompt):
    while True:
        pass

def one(text):
    return 1.0

score = 3
"""


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def _reward(module, name, **fields):
    return settings.Reward(
        weights={"function": 1.0}, function=f"{module}:{name}", **fields
    )


def test_a_function_gets_text_and_prompt_and_gives_the_value(module):
    result = score(PROMPT, "ab ab", _reward(module, "good"))
    assert result.value == 4.0
    assert result.parts == {"function": 4.0}


def test_a_function_weighs_beside_other_rewards(module):
    reward = settings.Reward(
        weights={"function": 0.5, "exact": 3.0}, function=f"{module}:good"
    )
    assert score(PROMPT, "ab", reward).value == 0.5 * 2 + 3.0


@pytest.mark.parametrize(
    ("text", "value", "said"),
    [
        ("none", None, "must be a number, got None"),
        ("text", None, "must be a number, got '1'"),
        ("nan", None, "must be finite"),
        ("other", None, "KeyError"),
        ("true", 1.0, ""),
    ],
)
def test_what_a_function_returns_is_checked(module, text, value, said):
    result = score(PROMPT, text, _reward(module, "kind"))
    assert result.value == value
    assert said in (result.failure or "")


def test_a_function_runs_in_the_pool_behind_its_fence_and_limit(module):
    for name, said in (("good", None), ("writes", "may not do open")):
        pool = RewardPool(_reward(module, name))
        scores: queue.Queue = queue.Queue()
        pool.submit(PROMPT, "ab", scores.put)
        result = scores.get(timeout=60)
        pool.close()
        assert (said is None) == (result.value == 2.0)
        assert said is None or said in result.failure
    pool = RewardPool(_reward(module, "hangs", timeout_s=0.5))
    scores = queue.Queue()
    pool.submit(PROMPT, "ab", scores.put)
    assert scores.get(timeout=60).failure == "timeout"
    pool.close()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("{module}:missing", "must name a function"),
        ("{module}:score", "must name a function"),
        ("{module}:one", "must take (text, prompt)"),
        ("{folder}/none.py:f", "FileNotFoundError"),
        ("no_such_package_x.y:f", "ModuleNotFoundError"),
    ],
)
def test_an_unusable_function_says_why_in_one_line(module, spec, said):
    spec = spec.format(module=module, folder=module.parent)
    with pytest.raises(FunctionError) as error:
        load_function(spec)
    assert said in str(error.value)


def test_a_configuration_with_an_unusable_function_is_refused_early(module):
    module.write_text("raise RuntimeError('first\\nsecond')")
    assert why_unusable("math:gcd") is None
    files = [str(ROOT / "configs/demo.gin")]
    bindings = [
        "Reward.weights = {'function': 1.0}",
        f"Reward.function = '{module}:good'",
        f"Tokenizer.path = '{ROOT}/configs/assets/arithmetic.model'",
    ]
    train = config.load(files, bindings).train
    with pytest.raises(config.ConfigError) as error:
        places.check_files(train)
    assert "RuntimeError: first second" in str(error.value)
    module.write_text(SOURCE)
    places.check_files(train)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"weights": {"function": 1.0}}, "must be set exactly where"),
        ({"function": "a:b"}, "must be set exactly where"),
        ({"weights": {"function": 1.0}, "function": "a.b"}, "must be 'package.module"),
        (
            {"weights": {"function": 1.0}, "function": "a:b", "processes": 0},
            "must be at least 1",
        ),
    ],
)
def test_settings_refuse_half_a_function(fields, said):
    with pytest.raises(ValueError, match=said):
        settings.Reward(**fields)
