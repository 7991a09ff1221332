"""How sampler, learner and the pipeline between them work."""

import dataclasses
import itertools

from jigsaw_jax.settings import check

ADMISSIONS = ("fifo", "frontier_strict", "frontier_priority", "frontier_adaptive")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
    """The engine and the distribution it draws from.

    Attributes:
      slots: sequences decoded together.
      slots_draining: smaller numbers of slots, ascending, to go on with once they are
        enough for all that runs and waits; a step then costs less.
      prompt_buckets: prompt lengths that prompts are padded to, ascending.
      new_tokens_max: cap on sampled tokens, the stop token included.
      steps_per_call: decode steps in one device call.
      unroll_layers: unroll a scanned decoder's layers in the sampler's programs: a TPU
        then reads a layer's weights while it computes another; longer to compile.
      temperature: of the logits; 0 is greedy and refused in training.
      top_k: keep the k likeliest tokens; 0 keeps all.
      top_p: keep the smallest set of at least this mass; 1 keeps all.
      stop_tokens: ids that end a completion; empty takes the tokenizer's own, and
        (-1,) means none.
      cache: "slots" (each has room for a longest trajectory) or "pages" (each has the
        pages that its request may need, and a group shares its prompt's).
      page_size: tokens of a page.
      num_pages: of all slots together; 0 takes as many as all slots need at most.
      kv_dtype: what keys and values are kept in: None is the decoder's compute type,
        "int8" has a scale a token and head.
    """

    slots: int = 32
    slots_draining: tuple[int, ...] = ()
    prompt_buckets: tuple[int, ...] = (32,)
    new_tokens_max: int = 64
    steps_per_call: int = 8
    unroll_layers: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop_tokens: tuple[int, ...] = ()
    cache: str = "slots"
    page_size: int = 64
    num_pages: int = 0
    kv_dtype: str | None = None

    def __post_init__(self) -> None:
        for name in ("slots", "new_tokens_max", "steps_per_call", "page_size"):
            check.at_least(f"Sampler.{name}", getattr(self, name), 1)
        check.one_of("Sampler.cache", self.cache, ("slots", "pages"))
        if self.kv_dtype not in (None, "int8"):
            raise ValueError(
                f"Sampler.kv_dtype must be None or 'int8', got {self.kv_dtype!r}"
            )
        self._check_pages()
        self._check_draining()
        buckets = self.prompt_buckets
        if not buckets or list(buckets) != sorted(set(buckets)) or buckets[0] < 1:
            raise ValueError(
                "Sampler.prompt_buckets must be ascending positive lengths, "
                f"got {buckets!r}"
            )
        check.at_least("Sampler.temperature", self.temperature, 0)
        check.at_least("Sampler.top_k", self.top_k, 0)
        if not 0 < self.top_p <= 1:
            raise ValueError(f"Sampler.top_p must be in (0, 1], got {self.top_p!r}")

    @property
    def length_max(self) -> int:
        """Tokens of the longest trajectory, prompt included."""
        return self.prompt_buckets[-1] + self.new_tokens_max

    @property
    def pages_per_slot(self) -> int:
        """Pages of the longest trajectory."""
        return -(-self.length_max // self.page_size)

    @property
    def pages_total(self) -> int:
        """`num_pages`, or what it stands for."""
        return self.num_pages or self.slots * self.pages_per_slot

    def _check_pages(self) -> None:
        if self.cache == "slots":
            if self.num_pages:
                raise ValueError(
                    "Sampler.cache must be 'pages' where Sampler.num_pages is set, "
                    f"got {self.cache!r}"
                )
            return
        if self.num_pages:
            # One longest trajectory has to fit, or it could never be sampled.
            check.at_least("Sampler.num_pages", self.num_pages, self.pages_per_slot)

    def _check_draining(self) -> None:
        fewer = self.slots_draining
        if any(a >= b for a, b in itertools.pairwise((0, *fewer, self.slots))):
            raise ValueError(
                "Sampler.slots_draining must be ascending numbers from 1 to below "
                f"Sampler.slots = {self.slots}, got {fewer!r}"
            )
        if fewer and self.cache != "slots":
            raise ValueError(
                "Sampler.cache must be 'slots' where Sampler.slots_draining is set, "
                f"got {self.cache!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learner:
    """The shapes of a training batch.

    Attributes:
      rows: packed rows of a full micro-batch; a multiple of data x fsdp devices.
      row_tokens: tokens of a row; at least the longest trajectory.
      row_shapes: how many fixed shapes there are: rows, rows / 2, rows / 4, ...
      min_fill: share of a shape's rows that should be in use before it is chosen.
      shared_prefix: a group's prompt stands once in a row, with its completions behind
        it; row_tokens then holds as many of them as fit.
      logprob_chunk: tokens whose logits exist at once; 0 takes all.
      remat: recompute activations of a layer in the backward pass.
      remat_save: what is kept nevertheless: "nothing", or "products" (of weights, and
        the attention kernel's output; elementwise work is then computed again, and
        attention where it is einsums).
    """

    rows: int = 16
    row_tokens: int = 256
    row_shapes: int = 2
    min_fill: float = 0.5
    shared_prefix: bool = False
    logprob_chunk: int = 0
    remat: bool = False
    remat_save: str = "nothing"

    def __post_init__(self) -> None:
        check.one_of("Learner.remat_save", self.remat_save, ("nothing", "products"))
        for name in ("rows", "row_tokens", "row_shapes"):
            check.at_least(f"Learner.{name}", getattr(self, name), 1)
        check.at_least("Learner.logprob_chunk", self.logprob_chunk, 0)
        if not 0 <= self.min_fill <= 1:
            raise ValueError(
                f"Learner.min_fill must be in [0, 1], got {self.min_fill!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Rounds, admission and what happens to groups.

    Attributes:
      mode: "sync" (all is sampled, then all is trained), "stream" (a group trains
        when it is complete) or "async" (bounded staleness).
      groups_per_round: R.
      samples_per_group: G.
      groups_per_update: U; divides R.
      staleness_max: S, in versions; "async" only.
      admission: "fifo", "frontier_strict", "frontier_priority" or, unless "sync",
        "frontier_adaptive".
      frontier_groups: F; of "frontier_adaptive" the least.
      request_order: of the requests that admission lets in: "arrival", or
        "longest_first" by a running estimate of each prompt's length.
      over_issue_groups: O, groups under way beyond the U of an update; "async" only. 0,
        and the most, is S U.
      early_stop: stop sampling while an update is full and until its version is served;
        what ran goes on afterwards from where it stopped. "async" only.
      filter: of groups whose rewards are all equal: "drop" or "keep".
      redraws_max: times that a dropped group's prompt is drawn anew.
      refill_groups_max: new prompts a round at most for groups that it lost, so that it
        trains R groups nevertheless; not in "async", which always replaces them.
      empty_rounds_max: rounds in a row with nothing to train before the run stops.
      attempts_max: deliveries of one draw before it is dropped.
      lost_after_s: seconds in which a worker or a reward must answer for a sample
        before it is sent out again; 0 waits for ever.
      reduction: "arrival", or "ordered" (bitwise repeatable).
      token_budget: tokens of the groups in one hand-off; 0 takes all that wait.
      queue_groups_max: complete groups that wait behind a busy learner before nothing
        more enters the sampler; 0 is no limit but the round's.
      queue_tokens_max: the same, in the tokens that those groups have sampled.
      prefetch_groups: prompts asked for ahead of admission, in groups; 0, and the
        most, is one round.
    """

    mode: str = "stream"
    groups_per_round: int = 8
    samples_per_group: int = 8
    groups_per_update: int = 8
    staleness_max: int = 0
    admission: str = "frontier_priority"
    frontier_groups: int = 2
    request_order: str = "arrival"
    over_issue_groups: int = 0
    early_stop: bool = False
    filter: str = "drop"
    redraws_max: int = 0
    refill_groups_max: int = 0
    empty_rounds_max: int = 20
    attempts_max: int = 3
    lost_after_s: float = 0.0
    reduction: str = "arrival"
    token_budget: int = 0
    queue_groups_max: int = 0
    queue_tokens_max: int = 0
    prefetch_groups: int = 0

    def __post_init__(self) -> None:
        rules = {
            "mode": ("sync", "stream", "async"),
            "admission": ADMISSIONS,
            "request_order": ("arrival", "longest_first"),
            "filter": ("drop", "keep"),
            "reduction": ("arrival", "ordered"),
        }
        for name, allowed in rules.items():
            check.one_of(f"Pipeline.{name}", getattr(self, name), allowed)
        for name in (
            "groups_per_round",
            "groups_per_update",
            "frontier_groups",
            "empty_rounds_max",
            "attempts_max",
        ):
            check.at_least(f"Pipeline.{name}", getattr(self, name), 1)
        check.at_least("Pipeline.samples_per_group", self.samples_per_group, 2)
        for name in (
            "staleness_max",
            "over_issue_groups",
            "redraws_max",
            "refill_groups_max",
            "lost_after_s",
            "token_budget",
            "queue_groups_max",
            "queue_tokens_max",
            "prefetch_groups",
        ):
            check.at_least(f"Pipeline.{name}", getattr(self, name), 0)
        check.divides(
            "Pipeline.groups_per_update (U)",
            self.groups_per_update,
            "Pipeline.groups_per_round (R)",
            self.groups_per_round,
        )
        self._check_mode()

    def _check_mode(self) -> None:
        """Refuse what the mode has no use for."""
        if self.staleness_max and self.mode != "async":
            raise ValueError(
                "Pipeline.staleness_max must be 0 unless Pipeline.mode is 'async', "
                f"got {self.staleness_max!r} in mode {self.mode!r}"
            )
        if self.admission == "frontier_adaptive" and self.mode == "sync":
            raise ValueError(
                "Pipeline.admission must not be 'frontier_adaptive' in mode 'sync' "
                "(nothing trains while it samples), got 'frontier_adaptive'; take "
                "'fifo'"
            )
        ahead_max = self.staleness_max * self.groups_per_update
        if self.over_issue_groups > ahead_max:
            raise ValueError(
                "Pipeline.over_issue_groups must be at most Pipeline.staleness_max x "
                f"Pipeline.groups_per_update = {ahead_max} (more could not train in "
                f"time), got {self.over_issue_groups!r}"
            )
        if self.early_stop and not self.staleness_max:
            raise ValueError(
                "Pipeline.early_stop must be False where Pipeline.staleness_max is 0 "
                "(nothing is sampled beyond an update's groups), got True"
            )
        if self.refill_groups_max and self.mode == "async":
            raise ValueError(
                "Pipeline.refill_groups_max must be 0 in mode 'async' (a lost group "
                f"always makes room for another), got {self.refill_groups_max!r}"
            )
