"""The learner: takes whole groups, sums their gradients, and steps the optimizer.

    begin_round(version)             these weights are now also the samplers'
      accumulate(groups, update) *   adds sums on the device, waits for nothing
      step(update)                   divides once, steps, brings the metrics back
      take_advantages()              what the update's groups trained with

Weights are never overwritten: a step makes new arrays. So what `export_params` gave to
the samplers, the frozen round and the reference stay as they were without a copy.

With adapters, "params" are theirs alone: what trains, has moments, is published and is
saved. The base is there once, for the policy, the round and the reference.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jigsaw_jax import mesh as meshes
from jigsaw_jax import settings
from jigsaw_jax.model import lora
from jigsaw_jax.records import Group, GroupId
from jigsaw_jax.train import gradient, metrics, optimizer, packing, sequences
from jigsaw_jax.train.gradient import Policies, Rewards
from jigsaw_jax.train.programs import Programs
from jigsaw_jax.types import Params

# Steps over which the supervised learning rate climbs.
WARM_UP_CLIMB = 10
NO_VERSION = -2


class Learner:
    """Policy, optimizer and gradient sums, sharded over a mesh by logical axes.

    Args:
      train: the run.
      mesh: the learner's devices.
      params: the first weights, on any device.
      reference_params: the reference of KL, as `export_params` would give it. Where KL
        needs one and none is given it is the policy at `freeze_reference`, and until
        then the first one.

    Attributes:
      frozen: weights that never change, on the mesh; empty without adapters.
    """

    def __init__(
        self,
        train: settings.Train,
        mesh: jax.sharding.Mesh,
        params: Params,
        *,
        reference_params: Params = None,
    ) -> None:
        self._train = train
        self._shapes = packing.shapes_of(train)
        self._programs = Programs(train, mesh, params)
        params, frozen = lora.split(params)
        self._params = meshes.place(params, self._programs.params_sharding)
        self.frozen = meshes.place(frozen, self._programs.frozen_sharding)
        self._opt_state, self._totals = self._programs.start()
        self._is_reference_given = reference_params is not None
        self._reference = None
        if self._is_reference_given:
            self._set_reference(reference_params)
        else:
            self.freeze_reference()
        self._round_params, self._round_version = self._params, NO_VERSION
        self._is_fresh = True
        self._waiting: list[Group] = []
        self._advantages: list[tuple[Sequence[Group], Any]] = []
        self._num_trained = 0
        self._warm_up_steps = 0

    @property
    def params(self) -> Params:
        """The current weights, frozen ones and adapters among them."""
        return {**self.frozen, **self._params}

    @property
    def compilations(self) -> int:
        """Programs compiled so far; constant after `compile`."""
        return self._programs.compilations

    def compile(self) -> None:
        """Compile all that training calls, so that nothing compiles later."""
        train, programs = self._train, self._programs
        pipeline = train.pipeline
        has_stale = pipeline.groups_per_update < pipeline.groups_per_round
        rewards = self._rewards(())
        for batch in map(self._empty, self._shapes.rows):
            if self._has_reward_kl:
                programs.add_reward_kl(
                    self._kl_policies(), rewards.kl_PG, batch, is_dry=True
                )
            for is_fresh in (True, False) if has_stale else (self._is_fresh,):
                self._add_batch(batch, rewards, is_fresh, is_dry=True)
        programs.advantages(rewards, is_dry=True)
        programs.step(self._params, self._opt_state, self._totals, 0.0, is_dry=True)

    def run_shapes(self) -> None:
        """Run each micro-batch shape on nothing, before there are any sums.

        A first run takes up to four times as long as the next, in which it finds its
        memory taken.
        """
        for batch in map(self._empty, self._shapes.rows):
            self._totals = self._add_batch(batch, self._rewards(()), self._is_fresh)
        self.block()
        zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), self._totals)
        self._totals = _placed_like(zeros, self._totals)

    def begin_round(self, version: int, *, round_params: Params = None) -> None:
        """The samplers serve `version` from now on.

        It is the learner's current weights, or `round_params` where a resumed run is
        past the first update of its round.
        """
        self._round_version = version
        self._is_fresh = round_params is None
        self._round_params = self._params
        if round_params is not None:
            sharding = self._programs.params_sharding
            self._round_params = meshes.place(round_params, sharding)

    def accumulate(self, groups: Sequence[Group], update: int) -> list[int]:
        """Add the gradient sums of whole groups to those of `update`.

        Only dispatches work, and says the rows of each micro-batch. Where the objective
        needs the whole update, the groups wait on the host for `step`.
        """
        most = self._train.pipeline.groups_per_update
        if self._train.objective.needs == "update":
            self._waiting += groups
            if len(self._waiting) > most:
                raise ValueError(
                    f"update must have at most {most} groups, got {len(self._waiting)}"
                )
            return []
        return [
            rows
            for start in range(0, len(groups), most)
            for rows in self._add(groups[start : start + most], update)
        ]

    def step(self, update: int) -> dict[str, float]:
        """Divide the sums once, step the optimizer and return the update's metrics.

        Without a single trained token nothing is stepped: weights, moments and the
        samplers' version stay, and the metrics say "optim/skipped" 1. A mean over no
        token is left out of the metrics (mismatch behind the first update of a round).
        """
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._add(waiting, update)
        rate = optimizer.learning_rate(
            self._train.optimizer, update, self._train.updates
        )
        return metrics.of_update(self._step(rate), rate)

    def take_advantages(self) -> dict[GroupId, list[float]]:
        """Of each completion of the groups of the last `step`, by group.

        Only where `Store.rollouts_every` has the update logged. They are those of the
        loss: of rewards less KL and the penalty on length, 0 where the reward is
        missing.
        """
        taken, self._advantages = self._advantages, []
        return {
            group.id: row
            for groups, values in taken
            for group, row in zip(groups, np.asarray(values).tolist(), strict=False)
        }

    def follow(self, params: Params, version: int) -> None:
        """Go by another learner's weights, frozen ones too, served as `version`."""
        trained, frozen = lora.split(params)
        self._params = meshes.place(trained, self._programs.params_sharding)
        self.frozen = meshes.place(frozen, self._programs.frozen_sharding)
        self.begin_round(version)

    def borrow(self, params: Params) -> None:
        """Go on in the round with the weights of another learner that has stepped.

        Args:
          params: what that learner's `export_params` returned, on any devices.
        """
        self._params = meshes.place(params, self._programs.params_sharding)
        self._is_fresh = False

    def take_sums(self) -> tuple[dict[str, Any], int]:
        """Take away what was summed since the last step.

        Returns:
          Sums on the host, and how many tokens trained, for another's `add_sums`.
        """
        taken = jax.device_get(self._totals), self._num_trained
        zeros = jax.tree.map(np.zeros_like, taken[0])
        self._totals = _placed_like(zeros, self._totals)
        self._num_trained, self._advantages = 0, []
        return taken

    def add_sums(self, sums: dict[str, Any], num_trained: int) -> None:
        """Add what another learner summed for this update, under the same weights."""
        own = jax.device_get(self._totals)
        both = jax.tree.map(np.add, own, sums)
        both[gradient.MAXIMUM] = np.maximum(
            own[gradient.MAXIMUM], sums[gradient.MAXIMUM]
        )
        self._totals = _placed_like(both, self._totals)
        self._num_trained += num_trained

    def abstract_sums(self) -> dict[str, Any]:
        """Shapes of what `take_sums` takes."""
        return jax.eval_shape(lambda: self._totals)

    def warm_up_step(
        self, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
    ) -> float:
        """One supervised step on (prompt, solution) tokens; returns the mean loss.

        The solution brings its own end-of-sequence token. The rate is constant behind
        a short climb.
        """
        trajectories = [sequences.from_pair(*pair) for pair in pairs]
        for batch in packing.pack(trajectories, self._shapes):
            self._num_trained += int(np.sum(batch.mask_RM))
            self._totals = self._programs.add_supervised(
                self._params, self._totals, batch, frozen=self.frozen
            )
        self._warm_up_steps += 1
        climb = min(self._warm_up_steps / WARM_UP_CLIMB, 1.0)
        sums = self._step(self._train.warm_up.learning_rate * climb)
        return sums["loss"] / sums["weight"]

    def end_warm_up(self) -> None:
        """Forget the optimizer's moments, which belong to another loss."""
        self._opt_state, _ = self._programs.start()
        self._warm_up_steps = 0
        self.freeze_reference()

    def freeze_reference(self) -> None:
        """Make the current policy the reference of KL, unless one was given."""
        if not self._is_reference_given:
            self._set_reference(self._params)

    def export_params(self) -> Params:
        """What trains of the weights, for samplers; no later step changes it."""
        return self._params

    def abstract_params(self) -> Params:
        """Shapes and shardings of what `export_params` returns."""
        return _abstract(self._params)

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs between two updates; gradient sums are not in it.

        The optimizer's arrays are valid until the next step, which reuses them.
        """
        state = {"params": self._params, "opt_state": self._opt_state}
        if self._reference is not None:
            state["reference_params"] = self._reference
        return state

    def abstract_state(self) -> dict[str, Any]:
        """`state` with shapes and shardings instead of arrays."""
        return _abstract(self.state())

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned, also on another mesh.

        Takes `state` over. Sums and waiting groups are dropped; a `begin_round` must
        follow.
        """
        programs = self._programs
        self._params = meshes.place(state["params"], programs.params_sharding)
        self._opt_state = meshes.place(state["opt_state"], programs.opt_sharding)
        if self._reference is not None:
            self._set_reference(state["reference_params"])
        _, self._totals = programs.start()
        self._round_params, self._round_version = self._params, NO_VERSION
        self._is_fresh = True
        self._waiting, self._advantages, self._num_trained = [], [], 0

    def block(self) -> None:
        """Wait for what was dispatched."""
        jax.block_until_ready(self._totals)

    @property
    def _has_reward_kl(self) -> bool:
        objective = self._train.objective
        return objective.kl is not None and objective.kl_placement == "reward"

    def _set_reference(self, params: Params) -> None:
        if self._train.objective.needs_reference:
            self._reference = meshes.place(params, self._programs.params_sharding)

    def _policies(self, is_fresh: bool) -> Policies:
        """Fresh weights are the old policy themselves and spare a forward pass."""
        is_recomputed = self._train.objective.old_policy == "recompute"
        return Policies(
            frozen=self.frozen,
            round=self._round_params if is_recomputed and not is_fresh else None,
            reference=self._reference,
        )

    def _kl_policies(self) -> Policies:
        return self._policies(is_fresh=False)

    def _rewards(self, groups: Sequence[Group]) -> Rewards:
        pipeline = self._train.pipeline
        scores = sequences.scores_of(
            groups, pipeline.groups_per_update, pipeline.samples_per_group
        )
        is_recomputed = self._train.objective.old_policy == "recompute"
        is_known = self._is_fresh or is_recomputed
        version = self._round_version if is_known else NO_VERSION
        return Rewards(
            rewards_PG=scores.rewards_PG,
            lengths_PG=scores.lengths_PG,
            kl_PG=np.zeros_like(scores.rewards_PG),
            version=np.asarray(version, np.int32),
        )

    def _add(self, groups: Sequence[Group], update: int) -> list[int]:
        trajectories = sequences.trajectories(
            groups, mask_truncated=self._train.objective.mask_truncated
        )
        batches = packing.pack(trajectories, self._shapes)
        rewards = self._rewards(groups)
        if self._has_reward_kl:
            rewards = self._take_off_kl(groups, rewards)
        if update % self._train.store.rollouts_every == 0:
            self._advantages.append((groups, self._programs.advantages(rewards)))
        for batch in batches:
            self._num_trained += int(np.sum(batch.mask_RM))
            self._totals = self._add_batch(batch, rewards, self._is_fresh)
        return [len(batch.tokens_RT) for batch in batches]

    def _add_batch(
        self,
        batch: packing.Batch,
        rewards: Rewards,
        is_fresh: bool,
        *,
        is_dry: bool = False,
    ) -> Any:
        return self._programs.add_policy(
            self._params,
            self._policies(is_fresh),
            self._totals,
            batch=batch,
            rewards=rewards,
            is_dry=is_dry,
        )

    def _empty(self, num_rows: int) -> packing.Batch:
        return packing.empty_batch(num_rows, self._shapes)

    def _take_off_kl(self, groups: Sequence[Group], rewards: Rewards) -> Rewards:
        """Rewards with the KL of every completion, those that do not train too.

        A masked completion still counts in its group's baseline, so it is packed here.
        """
        trajectories = sequences.trajectories(groups, mask_truncated=False)
        kl_PG = rewards.kl_PG
        for batch in packing.pack(trajectories, self._shapes):
            kl_PG = self._programs.add_reward_kl(self._kl_policies(), kl_PG, batch)
        return Rewards(
            rewards_PG=rewards.rewards_PG,
            lengths_PG=rewards.lengths_PG,
            kl_PG=kl_PG,
            version=rewards.version,
        )

    def _step(self, rate: float) -> dict[str, float]:
        """The update's sums, empty where nothing trained and no step was taken."""
        if not self._num_trained:
            return {}
        self._params, self._opt_state, self._totals, sums = self._programs.step(
            self._params, self._opt_state, self._totals, rate
        )
        self._num_trained, self._is_fresh = 0, False
        return {name: float(value) for name, value in jax.device_get(sums).items()}


def _placed_like(arrays: Any, placed: Any) -> Any:
    return meshes.place(arrays, jax.tree.map(lambda x: x.sharding, placed))


def _abstract(tree: Any) -> Any:
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree
    )
