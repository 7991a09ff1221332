"""What is optimised and by which optimizer."""

import dataclasses

from jigsaw_jax.settings import check


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """The policy-gradient objective; see docs/objective.md for each formula.

    Attributes:
      advantage: "grpo" (centre, divide by the group's std), "dr_grpo" (centre only),
        "rloo" (leave-one-out baseline) or "reinforce_pp" (centre in the group,
        divide by the std of the whole update: needs the update).
      ratio: "token", or "sequence" (GSPO).
      surrogate: "ppo" (clipped), or "cispo" (clipped, stopped weight on logprob).
      clip_low: the ratio is clipped below at 1 - clip_low.
      clip_high: and above at 1 + clip_high.
      dual_clip: bound c > 1 on the loss of negative advantages, or None.
      kl: None, or the estimator of KL to the reference: "k1", "k2" or "k3".
      kl_placement: "loss" or "reward".
      kl_coefficient: beta.
      aggregation: "token-mean", "seq-mean-token-mean", "seq-mean-token-sum" or
        "seq-mean-token-sum-norm".
      norm_tokens: the constant of "seq-mean-token-sum-norm", or None for the cap on
        new tokens.
      entropy_coefficient: added bonus on the policy's entropy.
      overlong_buffer: tokens before the cap over which the penalty grows; 0 is off.
      overlong_penalty: the penalty at the cap.
      mask_truncated: truncated samples get no weight, in numerator and denominator.
      mismatch: None, "truncate" or "mask": correction weights for the difference
        between sampler and learner logprobs of equal versions (with "recompute").
      mismatch_max: bound C of the weights.
      old_policy: "sampler" (its logprobs) or "recompute" (frozen round weights).
    """

    advantage: str = "grpo"
    ratio: str = "token"
    surrogate: str = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    kl: str | None = None
    kl_placement: str = "loss"
    kl_coefficient: float = 0.0
    aggregation: str = "token-mean"
    norm_tokens: int | None = None
    entropy_coefficient: float = 0.0
    overlong_buffer: int = 0
    overlong_penalty: float = 1.0
    mask_truncated: bool = False
    mismatch: str | None = None
    mismatch_max: float = 2.0
    old_policy: str = "sampler"

    def __post_init__(self) -> None:
        rules = {
            "advantage": ("grpo", "dr_grpo", "rloo", "reinforce_pp"),
            "ratio": ("token", "sequence"),
            "surrogate": ("ppo", "cispo"),
            "kl_placement": ("loss", "reward"),
            "aggregation": (
                "token-mean",
                "seq-mean-token-mean",
                "seq-mean-token-sum",
                "seq-mean-token-sum-norm",
            ),
            "old_policy": ("sampler", "recompute"),
        }
        for name, allowed in rules.items():
            check.one_of(f"Objective.{name}", getattr(self, name), allowed)
        self._check_kl()
        self._check_mismatch()
        for name in ("clip_low", "clip_high", "overlong_buffer", "overlong_penalty"):
            check.at_least(f"Objective.{name}", getattr(self, name), 0)
        check.above("Objective.mismatch_max", self.mismatch_max, 0)
        if self.dual_clip is not None:
            check.above("Objective.dual_clip", self.dual_clip, 1)
        if self.norm_tokens is not None:
            check.at_least("Objective.norm_tokens", self.norm_tokens, 1)

    def _check_kl(self) -> None:
        if self.kl is not None:
            check.one_of("Objective.kl", self.kl, ("k1", "k2", "k3"))
        if (self.kl is None) != (self.kl_coefficient == 0.0):
            raise ValueError(
                "Objective.kl_coefficient must be non-zero exactly where Objective.kl "
                f"is set, got kl {self.kl!r} and {self.kl_coefficient!r}"
            )

    def _check_mismatch(self) -> None:
        if self.mismatch is not None:
            check.one_of("Objective.mismatch", self.mismatch, ("truncate", "mask"))
            if self.old_policy != "recompute":
                raise ValueError(
                    "Objective.old_policy must be 'recompute' where Objective.mismatch "
                    "is set (the ratio to the sampler's logprobs already holds the "
                    f"mismatch), got {self.old_policy!r}"
                )

    @property
    def needs(self) -> str:
        """Either "group", or "update" where a statistic spans the whole update."""
        return "update" if self.advantage == "reinforce_pp" else "group"

    @property
    def needs_reference(self) -> bool:
        """Whether the learner must hold a reference policy."""
        return self.kl is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW with a schedule in units of updates.

    Attributes:
      learning_rate: its peak.
      schedule: "constant", "linear" or "cosine" decay to `end_fraction` of the peak.
      warmup_updates: linear warm-up from 0.
      end_fraction: of the peak, at the last update.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      weight_decay: decoupled, not applied to norms and biases.
      clip_norm: bound on the gradient's global norm, or None.
    """

    learning_rate: float = 1e-4
    schedule: str = "constant"
    warmup_updates: int = 0
    end_fraction: float = 0.0
    b1: float = 0.9
    b2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        check.one_of(
            "Optimizer.schedule", self.schedule, ("constant", "linear", "cosine")
        )
        check.above("Optimizer.learning_rate", self.learning_rate, 0)
        for name in ("warmup_updates", "end_fraction", "weight_decay"):
            check.at_least(f"Optimizer.{name}", getattr(self, name), 0)
        check.above("Optimizer.eps", self.eps, 0)
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"Optimizer.{name} must be in [0, 1), got {getattr(self, name)!r}"
                )
        if self.clip_norm is not None:
            check.above("Optimizer.clip_norm", self.clip_norm, 0)
