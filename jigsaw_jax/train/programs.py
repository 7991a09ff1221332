"""The learner's compiled programs: made ahead of time, one for each fixed shape."""

import functools
from typing import Any

import jax
import numpy as np
import optax
from jax.stages import Compiled, Lowered

from jigsaw_jax import mesh as meshes
from jigsaw_jax import settings
from jigsaw_jax.model import decoder as model
from jigsaw_jax.model import lora
from jigsaw_jax.train import gradient, optimizer, packing, sequences
from jigsaw_jax.types import Float, Params

SUMS = (
    "loss",
    "weight",
    "tokens",
    "entropy",
    "clip_low",
    "clip_high",
    "kl_behavior",
    "mismatch_count",
    "mismatch_abs",
    "mismatch_abs_max",
    "mismatch_weight",
)


class Programs:
    """Compiles each program the first time that it is called with a new shape.

    Args:
      train: the run.
      mesh: that all of it runs on.
      params: arrays or shapes of all weights.

    Attributes:
      params_sharding: of the params that train, leaf for leaf.
      frozen_sharding: of the others.
      opt_sharding: of the optimizer state.
      rows_sharding: of a batch.
      replicated: of all else.
    """

    def __init__(
        self, train: settings.Train, mesh: jax.sharding.Mesh, params: Params
    ) -> None:
        self._train = train
        self._shapes = lora.split(jax.eval_shape(lambda: params))
        params, frozen = self._shapes
        axes, frozen_axes = lora.split(model.logical_axes(train.decoder))
        transform = optimizer.transformation(train.optimizer, axes)
        self.params_sharding = meshes.sharding_tree(mesh, axes, params)
        self.frozen_sharding = meshes.sharding_tree(mesh, frozen_axes, frozen)
        self.replicated = meshes.replicated(mesh)
        self.rows_sharding = meshes.rows_sharding(mesh)
        opt_state = jax.eval_shape(functools.partial(optimizer.init, transform), params)
        self.opt_sharding = optax.tree_map_params(
            transform,
            lambda _, sharding: sharding,
            opt_state,
            self.params_sharding,
            transform_non_params=lambda _: self.replicated,
        )
        names = (*SUMS, "kl_ref") if train.objective.needs_reference else SUMS
        totals_sharding = dict.fromkeys(names, self.replicated)
        totals_sharding |= {"gradients": self.params_sharding}
        totals = jax.eval_shape(
            functools.partial(gradient.zero_totals, names=names), params
        )
        self._fresh = (opt_state, totals), (self.opt_sharding, totals_sharding)

        def program(function: Any, out: Any, *, donate: int | tuple = ()) -> Any:
            placed = meshes.on_mesh(mesh, functools.partial(function, train))
            return jax.jit(placed, donate_argnums=donate, out_shardings=out)

        self._add_policy = program(
            gradient.add_policy_gradients, totals_sharding, donate=2
        )
        self._add_supervised = program(
            gradient.add_supervised_gradients, totals_sharding, donate=1
        )
        self._add_reward_kl = program(gradient.add_reward_kl, self.replicated, donate=1)
        self._advantages = program(gradient.shaped_advantages, self.replicated)
        # Params are not donated: samplers, the frozen round and the reference may hold
        # the very same arrays, and none of them then needs a copy.
        self._step = jax.jit(
            functools.partial(gradient.step, transform),
            donate_argnums=(1, 2),
            out_shardings=(
                self.params_sharding,
                self.opt_sharding,
                totals_sharding,
                self.replicated,
            ),
        )
        self._compiled: dict[Any, Compiled] = {}

    @property
    def compilations(self) -> int:
        """Programs compiled so far."""
        return len(self._compiled)

    def start(self) -> tuple[Any, gradient.Totals]:
        """Optimizer state and totals as they begin: zeros, which need no program."""
        shapes, shardings = self._fresh
        zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
        return meshes.place(zeros, shardings)

    def add_policy(
        self,
        params: Params,
        policies: gradient.Policies,
        totals: gradient.Totals,
        *,
        batch: gradient.Batch,
        rewards: gradient.Rewards,
        is_dry: bool = False,
    ) -> Any:
        """`gradient.add_policy_gradients`, or None where `is_dry` only compiles."""
        key = ("policy", len(batch.mask_RM), policies.round is None)
        return self._run(
            key,
            self._add_policy,
            params,
            policies,
            totals,
            is_dry=is_dry,
            batch=meshes.place(batch, self.rows_sharding),
            rewards=meshes.place(rewards, self.replicated),
        )

    def add_supervised(
        self,
        params: Params,
        totals: gradient.Totals,
        batch: gradient.Batch,
        *,
        frozen: Params,
    ) -> gradient.Totals:
        """`gradient.add_supervised_gradients`."""
        placed = meshes.place(batch, self.rows_sharding)
        key = ("supervised", len(batch.mask_RM))
        return self._run(
            key, self._add_supervised, params, totals, placed, frozen=frozen
        )

    def add_reward_kl(
        self,
        policies: gradient.Policies,
        kl_PG: Float[Any, "P G"],
        batch: gradient.Batch,
        *,
        is_dry: bool = False,
    ) -> Any:
        """`gradient.add_reward_kl`, or None where `is_dry` only compiles."""
        return self._run(
            ("kl", len(batch.mask_RM)),
            self._add_reward_kl,
            policies,
            meshes.place(kl_PG, self.replicated),
            meshes.place(batch, self.rows_sharding),
            is_dry=is_dry,
        )

    def advantages(self, rewards: gradient.Rewards, *, is_dry: bool = False) -> Any:
        """`gradient.shaped_advantages`, or None where `is_dry` only compiles."""
        placed = meshes.place(rewards, self.replicated)
        return self._run("advantages", self._advantages, placed, is_dry=is_dry)

    def step(
        self,
        params: Params,
        opt_state: Any,
        totals: gradient.Totals,
        rate: float,
        *,
        is_dry: bool = False,
    ) -> Any:
        """`gradient.step`, or None where `is_dry` only compiles."""
        placed = meshes.place(np.float32(rate), self.replicated)
        return self._run(
            "step", self._step, params, opt_state, totals, placed, is_dry=is_dry
        )

    def lower_policy(self, num_rows: int, *, has_round: bool = False) -> Lowered:
        """`add_policy` of a batch of `num_rows`, lowered from shapes alone.

        With `has_round` the old policy is recomputed from the round's frozen weights.
        """
        train, (params, frozen) = self._train, self._params()
        batch = packing.empty_batch(num_rows, packing.shapes_of(train))
        pipeline = train.pipeline
        scores = sequences.scores_of(
            (), pipeline.groups_per_update, pipeline.samples_per_group
        )
        rewards = gradient.Rewards(
            rewards_PG=scores.rewards_PG,
            lengths_PG=scores.lengths_PG,
            kl_PG=scores.rewards_PG,
            version=np.int32(0),
        )
        policies = gradient.Policies(
            frozen=frozen,
            round=params if has_round else None,
            reference=params if train.objective.needs_reference else None,
        )
        _, totals = self._start()
        return self._add_policy.lower(
            params,
            policies,
            totals,
            batch=meshes.abstract(batch, self.rows_sharding),
            rewards=meshes.abstract(rewards, self.replicated),
        )

    def lower_step(self) -> Lowered:
        """`step`, lowered from shapes alone."""
        rate = meshes.abstract(np.float32(0), self.replicated)
        params, _ = self._params()
        return self._step.lower(params, *self._start(), rate)

    def _params(self) -> tuple[Params, Params]:
        """Shapes of what trains and of what does not."""
        params, frozen = self._shapes
        return (
            meshes.abstract(params, self.params_sharding),
            meshes.abstract(frozen, self.frozen_sharding),
        )

    def _start(self) -> tuple[Any, gradient.Totals]:
        """Shapes of what `start` returns."""
        return meshes.abstract(*self._fresh)

    def _run(
        self,
        key: Any,
        function: Any,
        *args: Any,
        is_dry: bool = False,
        **kwargs: Any,
    ) -> Any:
        if key not in self._compiled:
            self._compiled[key] = function.lower(*args, **kwargs).compile()
        return None if is_dry else self._compiled[key](*args, **kwargs)
