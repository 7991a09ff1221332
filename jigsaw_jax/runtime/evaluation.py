"""Accuracy and pass@k on the held-out split, with the run's own engine and reward."""

import dataclasses
import functools
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from jigsaw_jax.data.source import PromptSource
from jigsaw_jax.data.tokenizer import Tokenizer
from jigsaw_jax.records import Prompt, Sample, SampleId, Score
from jigsaw_jax.reward.pass_at_k import pass_at_k
from jigsaw_jax.runtime.sampler import request_for
from jigsaw_jax.sample.loop import SampleLoop, SampleRequest
from jigsaw_jax.settings import Evaluation, Sampler, Train

Submit = Callable[[Prompt, str, Callable[[Score], None]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What an evaluation found.

    accuracy: mean over problems of the share of completions that pass.
    pass_at: k to the unbiased pass@k, averaged over problems.
    problems: that were scored.
    missing: completions whose reward failed; they count as not passed.
    version_min: oldest weights that wrote a token of it.
    version_max: newest.
    """

    accuracy: float
    pass_at: dict[int, float]
    problems: int
    missing: int
    version_min: int
    version_max: int

    def metrics(self) -> dict[str, float]:
        """As logged."""
        named: dict[str, float] = {
            "eval/accuracy": self.accuracy,
            "eval/missing": self.missing,
        }
        named |= {f"eval/pass@{k}": v for k, v in self.pass_at.items()}
        return named | {
            "eval/version_min": self.version_min,
            "eval/version_max": self.version_max,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluationScored:
    """What an evaluation found that was begun after `updates` updates."""

    updates: int
    result: Result


class Evaluator:
    """Makes the same requests every time and joins the answers by identity.

    Its identities begin with "eval/", so its keys, prompts and completions can meet
    none of the run's, and nothing of it reaches the training buffer.
    """

    def __init__(
        self,
        train: Train,
        source: PromptSource,
        tokenizer: Tokenizer,
        submit: Submit,
    ) -> None:
        self._train = train
        self._submit = submit
        self._tokenizer = tokenizer
        self._settings = train.evaluation
        num = train.evaluation.problems or len(source)
        self._prompts = {
            f"eval/{prompt.uid}": prompt
            for prompt in (source.prompt(i) for i in range(min(num, len(source))))
        }

    @property
    def num_requests(self) -> int:
        """Completions of one evaluation."""
        return len(self._prompts) * self._settings.samples

    def requests(self) -> list[SampleRequest]:
        """One request a completion."""
        sampler = dataclasses.replace(
            self._train.sampler,
            temperature=self._settings.temperature,
            top_k=self._settings.top_k,
            top_p=self._settings.top_p,
        )
        return [
            self._request(uid, index, sampler)
            for uid in self._prompts
            for index in range(self._settings.samples)
        ]

    def _request(self, uid: str, index: int, sampler: Sampler) -> SampleRequest:
        return request_for(
            self._train, self._prompts[uid], SampleId(uid, 0, index), sampler
        )

    def begin(self, done: Callable[[Result], None]) -> Callable[[Sample], None]:
        """Begin one evaluation.

        Args:
          done: gets the result, from the thread that brings the last score.

        Returns:
          What takes each completion of `requests`, in any order; it sends it to be
          scored and waits for nothing.
        """
        scores = _Scores(tuple(self._prompts), self._settings, done)

        def receive(sample: Sample) -> None:
            uid = sample.id.uid
            versions = sample.version_min, sample.version_max
            text = completion_text(self._tokenizer, sample)
            self._submit(
                self._prompts[uid],
                text,
                lambda score: scores.add(uid, score, versions),
            )

        return receive

    def result(self, samples: Iterable[Sample]) -> Result:
        """Score the completions of `requests` and average; waits for the scores."""
        results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        receive = self.begin(results.put)
        for sample in samples:
            receive(sample)
        return results.get()

    def run(self, loop: SampleLoop) -> Result:
        """Evaluate with an idle loop on the calling thread; waits for the scores."""
        return self.result(sample_all(loop, self.requests()))


class _Scores:
    """Counts what passes until all completions are scored; safe from every thread."""

    def __init__(
        self,
        uids: Sequence[str],
        evaluation: Evaluation,
        done: Callable[[Result], None],
    ) -> None:
        self._settings = evaluation
        self._done = done
        self._lock = threading.Lock()
        self._passed = dict.fromkeys(uids, 0)
        self._left = len(uids) * evaluation.samples
        self._missing = 0
        self._versions: list[int] = []

    def add(self, uid: str, score: Score, versions: tuple[int, int]) -> None:
        """A completion is scored; `versions` are its oldest and newest token's."""
        with self._lock:
            value = score.value
            self._missing += value is None
            self._passed[uid] += value is not None and value >= self._settings.threshold
            self._versions += versions
            self._left -= 1
            if self._left:
                return
        self._done(self._result())

    def _result(self) -> Result:
        num = self._settings.samples
        counts = list(self._passed.values())
        return Result(
            accuracy=sum(counts) / (num * len(counts)),
            pass_at={
                k: sum(pass_at_k(num, c, k) for c in counts) / len(counts)
                for k in self._settings.k
            },
            problems=len(counts),
            missing=self._missing,
            version_min=min(self._versions),
            version_max=max(self._versions),
        )


def sample_all(loop: SampleLoop, requests: Iterable[SampleRequest]) -> Iterator[Sample]:
    """What an idle loop makes of these requests, on the calling thread."""
    for request in requests:
        loop.submit(request)
    while not loop.is_idle:
        yield from loop.step().finished


def completion_text(tokenizer: Tokenizer, sample: Sample) -> str:
    """The completion as people and rewards read it: without its stop token."""
    tokens = sample.tokens
    if tokens and not sample.is_truncated and tokens[-1] in tokenizer.stop_ids:
        tokens = tokens[:-1]
    return tokenizer.decode(tokens)


def completion_spelled(tokenizer: Tokenizer, sample: Sample) -> tuple[str, list[str]]:
    """Its text and its pieces."""
    return completion_text(tokenizer, sample), completion_pieces(tokenizer, sample)


def completion_pieces(tokenizer: Tokenizer, sample: Sample) -> list[str]:
    """The text of each token of a completion, observed ones and the stop included.

    Each token is read behind the one before it, since the first of a text loses its
    leading space. What only several tokens spell together is shown as U+FFFD.
    """
    return [
        _piece(tokenizer, before, token)
        for before, token in itertools.pairwise((None, *sample.tokens))
    ]


# Decoding a token alone is slow, and few pairs of neighbours are new. A quarter of a
# kilobyte each, they are all that grows in a run: until there are so many.
@functools.lru_cache(maxsize=1 << 13)
def _piece(tokenizer: Tokenizer, before: int | None, token: int) -> str:
    if before is None:
        return tokenizer.decode((token,))
    return tokenizer.decode((before, token))[len(tokenizer.decode((before,))) :]
