"""How completions are scored."""

import dataclasses
import re

from jigsaw_jax.settings import check

UNTRUSTED_REWARDS = frozenset({"code", "function", "math_verify", "reasoning_gym"})
# Seconds of a score beyond its programs' own: starting and ending their processes.
CODE_SPARE_S = 10.0
REWARDS = UNTRUSTED_REWARDS | {
    "exact",
    "format",
    "lowercase_share",
    "multiple_choice",
    "numeric",
    "task",
}
FUNCTION = re.compile(r"([\w.]+|[^:]+\.py):[A-Za-z_]\w*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reward:
    """How completions are scored.

    Attributes:
      weights: reward name to weight; the value is the weighted sum. Names: "exact",
        "numeric", "reasoning_gym", "math_verify", "multiple_choice", "format",
        "lowercase_share", "code", "function", "task" (our strict scorer of the task).
      function: of your own, for the reward "function": "package.module:name" or
        "folder/file.py:name"; docs/rewards.md has what it gets and returns.
      processes: of the pool; 0 scores on the calling thread (trusted rewards only).
      timeout_s: wall limit of one score.
      shuffled: give each score to another sample: a control that must not learn.
      format_pattern: regular expression of the "format" reward.
      answer_mark: the answer is what stands behind the last one of it; None takes the
        last <answer>...</answer>, or else the whole text.
      allow_executing_scorers: let "reasoning_gym" run those of its scorers that
        evaluate the answer as Python (docs/rewards.md lists them); pool only.
      code_isolation: of the programs that "code" runs: "strict" refuses a machine
        that lacks a piece, "best_effort" takes what there is (docs/code_reward.md).
      code_score: "all" is 1 where every test passes; "fraction" is their share.
      code_trusts_asserts: also take asserts that can only be judged inside the
        program's own process, which a program can forge.
      code_wall_s: wall limit of all tests of one completion together.
      code_cpu_s: processor seconds of a test, for each process.
      code_memory_mb: address space of each process of a test.
      code_processes: processes and threads of a test at once.
      code_file_mb: of one file, and of the working directory.
      code_output_kb: output of a test; a program that writes more is killed.
    """

    weights: dict = dataclasses.field(default_factory=lambda: {"task": 1.0})
    function: str | None = None
    processes: int = 1
    timeout_s: float = 5.0
    shuffled: bool = False
    format_pattern: str = r"(?s).*<answer>.*</answer>\s*"
    answer_mark: str | None = None
    allow_executing_scorers: bool = False
    code_isolation: str = "strict"
    code_score: str = "all"
    code_trusts_asserts: bool = False
    code_wall_s: float = 10.0
    code_cpu_s: int = 2
    code_memory_mb: int = 512
    code_processes: int = 4
    code_file_mb: int = 8
    code_output_kb: int = 1024

    def __post_init__(self) -> None:
        if not self.weights:
            raise ValueError("Reward.weights must name a reward, got {}")
        for name in self.weights:
            check.one_of("A name in Reward.weights", name, REWARDS)
        if self.answer_mark == "":
            raise ValueError("Reward.answer_mark must hold a character, got ''")
        check.pattern("Reward.format_pattern", self.format_pattern, groups=0)
        untrusted = sorted(UNTRUSTED_REWARDS & set(self.weights))
        if untrusted and not self.processes:
            raise ValueError(
                "Reward.processes must be at least 1 for the rewards "
                f"{', '.join(untrusted)} (others' code: it can hang), got 0"
            )
        check.at_least("Reward.processes", self.processes, 0)
        check.above("Reward.timeout_s", self.timeout_s, 0)
        self._check_function()
        self._check_code()

    def _check_function(self) -> None:
        if ("function" in self.weights) != (self.function is not None):
            raise ValueError(
                "Reward.function must be set exactly where Reward.weights names "
                f"'function', got {self.function!r} with {sorted(self.weights)}"
            )
        if self.function is not None and not FUNCTION.fullmatch(self.function):
            raise ValueError(
                "Reward.function must be 'package.module:name' or "
                f"'folder/file.py:name', got {self.function!r}"
            )

    def _check_code(self) -> None:
        check.one_of(
            "Reward.code_isolation", self.code_isolation, ("strict", "best_effort")
        )
        check.one_of("Reward.code_score", self.code_score, ("all", "fraction"))
        check.above("Reward.code_wall_s", self.code_wall_s, 0)
        for name in ("cpu_s", "processes", "file_mb", "output_kb"):
            check.at_least(f"Reward.code_{name}", getattr(self, f"code_{name}"), 1)
        # An interpreter alone takes 20.
        check.at_least("Reward.code_memory_mb", self.code_memory_mb, 64)
        if "code" not in self.weights:
            return
        # A program that is slow is wrong, and a score that is late is missing.
        least_s = self.code_wall_s + CODE_SPARE_S
        if self.timeout_s < least_s:
            raise ValueError(
                f"Reward.timeout_s must be at least Reward.code_wall_s + "
                f"{CODE_SPARE_S:g} = {least_s:g} for the reward code, "
                f"got {self.timeout_s!r}"
            )
        if self.allow_executing_scorers:
            raise ValueError(
                "Reward.allow_executing_scorers must be False beside the reward code "
                "(an answer run there could read the tests), got True"
            )
