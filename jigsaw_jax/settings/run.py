"""A whole run: data, evaluation, store, and `Train` that joins them all."""

import dataclasses

from jigsaw_jax.settings import cached, check
from jigsaw_jax.settings.cluster import Cluster, check_cluster
from jigsaw_jax.settings.mesh import Mesh
from jigsaw_jax.settings.model import Decoder, Tokenizer, Weights
from jigsaw_jax.settings.objective import Objective, Optimizer
from jigsaw_jax.settings.reward import Reward
from jigsaw_jax.settings.simulation import Simulation
from jigsaw_jax.settings.work import Learner, Pipeline, Sampler


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Problems and how they are split.

    Attributes:
      source: "reasoning_gym", "jsonl" or "random_bytes" (prompts of random byte
        tokens, for benches: no data set, no template, no answer).
      task: the reasoning-gym task's name; for JSONL the name given to the problems.
      options: the task's own settings, for example {"min_terms": 2}.
      path: of the JSONL file of {"prompt", "answer"} objects.
      size: problems of the training split (reasoning-gym).
      held_out: problems of the held-out split, never trained.
      seed: of the generator and of the shuffle.
      question: regular expression whose first group is the part of a problem's text
        that is shown, for example ": (.*)"; None shows all of it.
      template: prompt text with one {prompt} place.
      prompt_tokens: length of each "random_bytes" prompt.
    """

    source: str = "reasoning_gym"
    task: str = "chain_sum"
    options: dict = dataclasses.field(default_factory=dict)
    path: str | None = None
    size: int = 10_000
    held_out: int = 200
    seed: int = 0
    question: str | None = None
    template: str = "{prompt}"
    prompt_tokens: int = 32

    def __post_init__(self) -> None:
        check.one_of(
            "Data.source", self.source, ("reasoning_gym", "jsonl", "random_bytes")
        )
        if (self.source == "jsonl") != (self.path is not None):
            raise ValueError(
                "Data.path must be set exactly where Data.source is 'jsonl', "
                f"got source {self.source!r} and path {self.path!r}"
            )
        check.at_least("Data.size", self.size, 1)
        check.at_least("Data.held_out", self.held_out, 0)
        check.at_least("Data.prompt_tokens", self.prompt_tokens, 1)
        if self.question is not None:
            check.pattern("Data.question", self.question, groups=1)
        if self.template.count("{prompt}") != 1:
            raise ValueError(
                "Data.template must hold {prompt} exactly once, "
                f"got {self.template!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Supervised warm-up on (prompt, solution) pairs before the first round.

    Attributes:
      updates: optimizer steps at most; 0 is none.
      stop_loss: end it once the mean loss of the last 20 steps, in nats a token, is at
        most this; 0 never does.
      batch: pairs a step.
      learning_rate: constant after a short linear start.
      solution: text with an {answer} place, or for sums a {steps} place (the running
        totals, joined by "=").
    """

    updates: int = 0
    stop_loss: float = 0.0
    batch: int = 64
    learning_rate: float = 1e-3
    solution: str = "{answer}"

    def __post_init__(self) -> None:
        check.at_least("WarmUp.updates", self.updates, 0)
        check.at_least("WarmUp.stop_loss", self.stop_loss, 0)
        check.at_least("WarmUp.batch", self.batch, 1)
        if "{answer}" not in self.solution and "{steps}" not in self.solution:
            raise ValueError(
                "WarmUp.solution must hold {answer} or {steps}, "
                f"got {self.solution!r}"
            )
        check.above("WarmUp.learning_rate", self.learning_rate, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Evaluation on the held-out split.

    Attributes:
      every: updates between evaluations; 0 evaluates at the start and the end only,
        and -1 never.
      problems: how many of the held-out split; 0 takes all.
      samples: completions a problem.
      k: the k of pass@k; each at most `samples`.
      temperature: 0 is greedy.
      top_k: as in Sampler.
      top_p: as in Sampler.
      threshold: a completion passes when its value is at least this.
    """

    every: int = 0
    problems: int = 0
    samples: int = 1
    k: tuple[int, ...] = (1,)
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    threshold: float = 1.0

    def __post_init__(self) -> None:
        check.at_least("Evaluation.every", self.every, -1)
        check.at_least("Evaluation.samples", self.samples, 1)
        for k in self.k:
            if not 1 <= k <= self.samples:
                raise ValueError(
                    "Evaluation.k must be between 1 and Evaluation.samples = "
                    f"{self.samples}, got {k!r}"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Store:
    """What a run leaves behind.

    Attributes:
      checkpoint_every: updates between checkpoints; the last update always has one.
      checkpoints_kept: K newest.
      rollouts_every: updates between updates whose samples are written.
      tensorboard: write TensorBoard files.
      export: "hf" writes the policy that the run ends with as a Hugging Face folder
        named export, adapters merged; "none" does not.
      export_dtype: "float32" or "bfloat16".
    """

    checkpoint_every: int = 10
    checkpoints_kept: int = 2
    rollouts_every: int = 1
    tensorboard: bool = True
    export: str = "none"
    export_dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("checkpoint_every", "checkpoints_kept", "rollouts_every"):
            check.at_least(f"Store.{name}", getattr(self, name), 1)
        check.one_of("Store.export", self.export, ("none", "hf"))
        check.one_of("Store.export_dtype", self.export_dtype, ("float32", "bfloat16"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """One run.

    Attributes:
      updates: optimizer steps of the run; a round with nothing to train has none.
      seed: of the whole run.
      pipeline_name: names this run's policy, data and ids.
      decoder: the policy's shape.
      weights: its first weights.
      tokenizer: text to tokens.
      data: problems.
      reward: scores.
      sampler: the engine.
      learner: batch shapes.
      objective: what is optimised.
      optimizer: how.
      pipeline: rounds and admission.
      warm_up: supervised start.
      evaluation: held-out accuracy.
      store: checkpoints and logs.
      mesh: devices.
      cluster: how the run spreads over processes, with `--cluster`.
      simulation: what `simulate` supposes; a real run reads nothing of it.
    """

    updates: int
    decoder: Decoder
    seed: int = 0
    pipeline_name: str = "main"
    weights: Weights = dataclasses.field(default_factory=Weights)
    tokenizer: Tokenizer = dataclasses.field(default_factory=Tokenizer)
    data: Data = dataclasses.field(default_factory=Data)
    reward: Reward = dataclasses.field(default_factory=Reward)
    sampler: Sampler = dataclasses.field(default_factory=Sampler)
    learner: Learner = dataclasses.field(default_factory=Learner)
    objective: Objective = dataclasses.field(default_factory=Objective)
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    pipeline: Pipeline = dataclasses.field(default_factory=Pipeline)
    warm_up: WarmUp = dataclasses.field(default_factory=WarmUp)
    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
    store: Store = dataclasses.field(default_factory=Store)
    mesh: Mesh = dataclasses.field(default_factory=Mesh)
    cluster: Cluster = dataclasses.field(default_factory=Cluster)
    simulation: Simulation = dataclasses.field(default_factory=Simulation)

    def __post_init__(self) -> None:
        check.at_least("Train.updates", self.updates, 1)
        # JAX takes a seed of 32 bits.
        if not 0 <= self.seed < 2**31:
            raise ValueError(
                f"Train.seed must be from 0 to 2**31 - 1, got {self.seed!r}"
            )
        check.divides(
            "Mesh.data x Mesh.fsdp",
            self.mesh.data * self.mesh.fsdp,
            "Learner.rows",
            self.learner.rows,
        )
        self._check_weights_divide()
        self._check_canonical()
        check.at_least(
            "Learner.row_tokens", self.learner.row_tokens, self.sampler.length_max
        )
        if self.data.source == "random_bytes":
            check.at_least(
                "The last of Sampler.prompt_buckets",
                self.sampler.prompt_buckets[-1],
                self.data.prompt_tokens,
            )
        self._check_stop_tokens()
        cached.check_cache(
            self.sampler,
            self.objective,
            replicas=self.mesh.sampler_data,
            is_canonical=bool(self.decoder.canonical_tile),
        )
        check_cluster(
            self.cluster, self.pipeline, self.sampler, self.objective, self.mesh
        )
        if self.sampler.top_k or self.sampler.top_p < 1:
            raise ValueError(
                "Sampler.top_k must be 0 and Sampler.top_p 1 in training (the learner "
                f"sees the whole distribution), got {self.sampler.top_k!r} and "
                f"{self.sampler.top_p!r}; Evaluation.top_k and top_p are free"
            )
        check.above("Sampler.temperature", self.sampler.temperature, 0)
        if self.pipeline.mode == "async" and self.objective.old_policy == "recompute":
            raise ValueError(
                "Objective.old_policy must be 'sampler' in mode 'async' (one group "
                "has tokens of several versions), got 'recompute'"
            )
        if self.simulation.costs.trains == "round" and self.pipeline.mode != "sync":
            raise ValueError(
                "Pipeline.mode must be 'sync' where Costs.trains is 'round', got "
                f"{self.pipeline.mode!r}"
            )

    def _check_weights_divide(self) -> None:
        """Refuse what `mesh.partition_spec` would, before anything is built."""
        decoder = self.decoder
        for axis in ("tensor", "sampler_tensor"):
            for name in ("vocab_size", "hidden_dim", "num_heads"):
                check.divides(
                    f"Mesh.{axis}",
                    getattr(self.mesh, axis),
                    f"Decoder.{name}",
                    getattr(decoder, name),
                )
        check.divides(
            "Mesh.fsdp", self.mesh.fsdp, "Decoder.model_dim", decoder.model_dim
        )

    def _check_canonical(self) -> None:
        """A device's share of a tile is another shape, so another rounding."""
        for axis in ("data", "fsdp", "tensor", "sampler_data", "sampler_tensor"):
            if self.decoder.canonical_tile and getattr(self.mesh, axis) > 1:
                raise ValueError(
                    "Decoder.canonical_tile must be 0 unless sampler and learner have "
                    f"one device each, got {self.decoder.canonical_tile!r} with "
                    f"Mesh.{axis} = {getattr(self.mesh, axis)!r}"
                )

    def _check_stop_tokens(self) -> None:
        """Refuse ids that can never be drawn."""
        stops, size = self.sampler.stop_tokens, self.decoder.vocab_size
        if stops != (-1,) and not all(0 <= token < size for token in stops):
            raise ValueError(
                "Sampler.stop_tokens must be ids below Decoder.vocab_size = "
                f"{size}, or (-1,) for none, got {stops!r}"
            )
