"""What `python -m jigsaw_jax.simulate` supposes beside the run's own settings."""

import dataclasses

from jigsaw_jax.settings import check

_POOL = ("workers", "slots", "tensor", "speed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """What is sampled, and how long its rewards and tools take.

    Attributes:
      lengths: of completions, in sampled tokens: "lognormal", "empirical"
        (`length_samples`) or "recorded" (those of the run in `record`).
      length_mean: mean of the log-normal before `Sampler.new_tokens_max` cuts it.
      length_sigma: standard deviation of the length's logarithm.
      length_samples: lengths to draw from.
      length_drift: what the mean grows by each round, as a share of the first.
      group_correlation: share of the variance of the logarithm that the samples of a
        group have in common.
      record: directory of a run.
      prompt_tokens: length of every prompt.
      flat_rate: share of groups whose rewards are all equal.
      reward_s: median time of a reward.
      reward_sigma: standard deviation of its logarithm.
      turns: generations of a trajectory, of equal length, with a tool call between.
      tool_s: median time of a tool call, in which the slot is held.
      tool_sigma: standard deviation of its logarithm.
    """

    lengths: str = "lognormal"
    length_mean: float = 512.0
    length_sigma: float = 0.6
    length_samples: tuple[int, ...] = ()
    length_drift: float = 0.0
    group_correlation: float = 0.0
    record: str | None = None
    prompt_tokens: int = 128
    flat_rate: float = 0.0
    reward_s: float = 0.0
    reward_sigma: float = 0.0
    turns: int = 1
    tool_s: float = 0.0
    tool_sigma: float = 0.0

    def __post_init__(self) -> None:
        allowed = ("lognormal", "empirical", "recorded")
        check.one_of("Workload.lengths", self.lengths, allowed)
        check.at_least("Workload.length_mean", self.length_mean, 1)
        for name in ("length_sigma", "prompt_tokens", "reward_s", "reward_sigma"):
            check.at_least(f"Workload.{name}", getattr(self, name), 0)
        for name in ("tool_s", "tool_sigma"):
            check.at_least(f"Workload.{name}", getattr(self, name), 0)
        check.above("Workload.length_drift", self.length_drift, -1)
        for name in ("group_correlation", "flat_rate"):
            check.share(f"Workload.{name}", getattr(self, name))
        check.at_least("Workload.turns", self.turns, 1)
        if (self.lengths == "empirical") != bool(self.length_samples):
            raise ValueError(
                "Workload.length_samples must hold lengths exactly where "
                f"Workload.lengths is 'empirical', got {self.lengths!r} and "
                f"{len(self.length_samples)} of them"
            )
        if any(length < 1 for length in self.length_samples):
            raise ValueError(
                "Workload.length_samples must all be at least 1, "
                f"got {min(self.length_samples)!r}"
            )
        if (self.lengths == "recorded") != (self.record is not None):
            raise ValueError(
                "Workload.record must be set exactly where Workload.lengths is "
                f"'recorded', got {self.lengths!r} and {self.record!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """How long the work takes.

    A decode step takes decode_s + decode_sequence_s x running sequences +
    decode_token_s x tokens that they hold. A hand-off takes accumulate_s + group_s x
    groups + train_token_s x their tokens, and gradient_s for each full micro-batch
    that their rows fill.

    Attributes:
      source: "constants" (those below), "analytic" (from the model's shape and
        `generation`), "plan" (a plan's JSON) or "run" (a run directory's events);
        all but the first replace the constants.
      path: of the plan or of the run directory.
      more_plans: further plans; each side takes the one of as many chips as it has, and
        `path` where there is none.
      generation: of the chips.
      decode_s: of a step, whatever runs.
      decode_sequence_s: more for each sequence that runs.
      decode_token_s: more for each token of context that they hold.
      prefill_token_s: of a prompt's token; a group's prompt counts once a worker.
      accumulate_s: of a hand-off.
      group_s: of a group.
      train_token_s: of a token, prompts included.
      gradient_s: of a full micro-batch of Learner.rows x Learner.row_tokens.
      step_s: of the optimizer.
      publish_s: of handing a version to the samplers.
      checkpoint_s: for which a checkpoint holds the learner up.
      write_s: that it takes to be written, behind the back of a learner that waits,
        from when it begins to hold the learner up.
      write_held: share of its speed that the writing loses while the learner computes,
        where both share a core.
      write_lost: share of its speed that the learner loses meanwhile.
      dispatch_s: for which the learner waits, not computing, whenever it is called to
        train: for a hand-off, an update or a round, as `trains` says.
      report_s: from a completion's end until the pipeline knows of it and what it sends
        into the free slot is there.
      insert_s: of entering slots, for each prompt that does in a device call.
      finish_s: by which a completion's end holds its worker's next device call up:
        the host's work for it, where both share a core.
      beside: share by which a worker's calls take longer while the learner computes,
        where both share memory or cores.
      train_beside: share by which hand-offs take longer while samplers decode.
      error: relative error that predictions of decode and training times may have;
        --recommend tries its choice against it.
      trains: "group" (a group's gradient as soon as it is handed over), "update"
        (all of an update's when it is full, as RolloutPipe does) or "round" (the
        same, called once for all updates of a "sync" round, as Slime does).
    """

    source: str = "constants"
    path: str | None = None
    more_plans: tuple[str, ...] = ()
    generation: str = "v5e"
    decode_s: float = 0.02
    decode_sequence_s: float = 0.0
    decode_token_s: float = 0.0
    prefill_token_s: float = 0.0
    accumulate_s: float = 0.0
    group_s: float = 0.0
    train_token_s: float = 0.0
    gradient_s: float = 0.0
    step_s: float = 0.0
    publish_s: float = 0.0
    checkpoint_s: float = 0.0
    write_s: float = 0.0
    write_held: float = 0.0
    write_lost: float = 0.0
    dispatch_s: float = 0.0
    report_s: float = 0.0
    insert_s: float = 0.0
    finish_s: float = 0.0
    beside: float = 0.0
    train_beside: float = 0.0
    error: float = 0.0
    trains: str = "group"

    def __post_init__(self) -> None:
        allowed = ("constants", "analytic", "plan", "run")
        check.one_of("Costs.source", self.source, allowed)
        check.one_of("Costs.trains", self.trains, ("group", "update", "round"))
        check.share("Costs.error", self.error)
        check.at_least("Costs.beside", self.beside, 0)
        check.at_least("Costs.train_beside", self.train_beside, 0)
        for name in ("write_held", "write_lost"):
            check.share(f"Costs.{name}", getattr(self, name))
            if getattr(self, name) == 1:
                raise ValueError(
                    f"Costs.{name} must be less than 1, at which nothing goes on, got 1"
                )
        for field in dataclasses.fields(self):
            if field.name.endswith("_s"):
                value = getattr(self, field.name)
                check.at_least(f"Costs.{field.name}", value, 0)
        if self.source == "constants" and not self.decode_s + self.decode_sequence_s:
            raise ValueError(
                "Costs.decode_s must be greater than 0 where decode_sequence_s is 0, "
                f"got {self.decode_s!r}"
            )
        if (self.source in ("plan", "run")) != (self.path is not None):
            raise ValueError(
                "Costs.path must be set exactly where Costs.source is 'plan' or "
                f"'run', got {self.source!r} and {self.path!r}"
            )
        if self.more_plans and self.source != "plan":
            raise ValueError(
                "Costs.more_plans must be empty unless Costs.source is 'plan', "
                f"got {self.more_plans!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fleet:
    """The sampler workers.

    Attributes:
      workers: with Sampler.slots slots on Mesh.sampler_tensor chips each.
      pools: instead, name to {"workers", "slots", "tensor", "speed"}; what is left out
        is 1 worker, Sampler.slots, Mesh.sampler_tensor and speed 1.
      straggler_share: of workers that are slow.
      straggler_speed: of such a worker, where the others' is 1.
      failure_every_s: mean time between the failures of one worker; 0 is never.
      repair_s: until a failed one is back.
    """

    workers: int = 1
    pools: dict = dataclasses.field(default_factory=dict)
    straggler_share: float = 0.0
    straggler_speed: float = 0.5
    failure_every_s: float = 0.0
    repair_s: float = 60.0

    def __post_init__(self) -> None:
        check.at_least("Fleet.workers", self.workers, 1)
        check.share("Fleet.straggler_share", self.straggler_share)
        check.above("Fleet.straggler_speed", self.straggler_speed, 0)
        check.at_least("Fleet.failure_every_s", self.failure_every_s, 0)
        check.above("Fleet.repair_s", self.repair_s, 0)
        for name, pool in self.pools.items():
            if not isinstance(pool, dict):
                raise ValueError(f"Fleet.pools[{name!r}] must be a dict, got {pool!r}")
            for key, value in pool.items():
                check.one_of(f"A key of Fleet.pools[{name!r}]", key, _POOL)
                check.above(f"Fleet.pools[{name!r}][{key!r}]", value, 0)
                if key != "speed" and not isinstance(value, int):
                    raise ValueError(
                        f"Fleet.pools[{name!r}][{key!r}] must be int, got {value!r}"
                    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
    """What is simulated, and what it is compared with.

    Attributes:
      rounds: of each run.
      seeds: runs whose numbers are averaged; they differ in lengths, rewards, failures.
      scenarios: name to {setting: value}, on top of the run; {} is the run alone.
      policies: name to {setting: value}, on top of a scenario; {} is the run's own.
      published: scenario to policy to {number: value or (low, high)}; under "any"
        what holds in every scenario that doesn't say otherwise.
      bounds: policy to {number: rule} for what is published: "within" 8 % of a value
        or inside a band, "at_least" its low end, or "at_most" its high one.
      search: for --recommend: setting to the values to try.
      chips: for --recommend: of all slices together.
      workload: lengths and latencies.
      costs: times.
      fleet: sampler workers.
    """

    rounds: int = 1
    seeds: int = 3
    scenarios: dict = dataclasses.field(default_factory=dict)
    policies: dict = dataclasses.field(default_factory=dict)
    published: dict = dataclasses.field(default_factory=dict)
    bounds: dict = dataclasses.field(default_factory=dict)
    search: dict = dataclasses.field(default_factory=dict)
    chips: int = 16
    workload: Workload = dataclasses.field(default_factory=Workload)
    costs: Costs = dataclasses.field(default_factory=Costs)
    fleet: Fleet = dataclasses.field(default_factory=Fleet)

    def __post_init__(self) -> None:
        check.at_least("Simulation.rounds", self.rounds, 1)
        check.at_least("Simulation.seeds", self.seeds, 1)
        check.at_least("Simulation.chips", self.chips, 2)
        for policy, rules in self.bounds.items():
            for number, rule in dict(rules).items():
                name = f"Simulation.bounds[{policy!r}][{number!r}]"
                check.one_of(name, rule, ("within", "at_least", "at_most"))
        for name in ("scenarios", "policies"):
            for key, value in getattr(self, name).items():
                if not isinstance(value, dict):
                    raise ValueError(
                        f"Simulation.{name}[{key!r}] must be a dict of settings, "
                        f"got {value!r}"
                    )
