"""Training in a worker process: learner, checkpoints, and the source of weights.

In a slice of several hosts each has this duty and does the same commands in the same
order; the first alone speaks, and writes and reads the disk.
"""

import collections
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from jigsaw_jax import mesh as meshes
from jigsaw_jax.records import (
    CheckpointDurable,
    Event,
    StepUpdate,
    UpdateStepped,
)
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.base import base_of
from jigsaw_jax.runtime.build import build_learner
from jigsaw_jax.runtime.cluster import carriers, leaves, offers
from jigsaw_jax.runtime.cluster.outbox import Outbox
from jigsaw_jax.runtime.cluster.places import PayloadLostError, fetch
from jigsaw_jax.runtime.compilations import CompilationCounter
from jigsaw_jax.runtime.devices import prepare_devices
from jigsaw_jax.runtime.export import export_policy
from jigsaw_jax.runtime.inputs import open_inputs
from jigsaw_jax.runtime.intervals import Silent
from jigsaw_jax.runtime.learner import LearnerWorker
from jigsaw_jax.runtime.lines.depot import Depot, FarDepot, Key, Shelf, read_address
from jigsaw_jax.runtime.slice.join import check_joined
from jigsaw_jax.runtime.slice.peers import Peers
from jigsaw_jax.runtime.slice.whole import Exchange, on_host
from jigsaw_jax.runtime.start import warm_up_policy
from jigsaw_jax.runtime.threads import ThreadFailed, Turns
from jigsaw_jax.runtime.vault import Vault
from jigsaw_jax.runtime.weights import CarrierError, Offer, Sender, merge
from jigsaw_jax.settings import Train
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.store.run_dir import RunDir
from jigsaw_jax.train.learner import Learner


class LearnerDuty:
    """Builds, loads or warms up, compiles, and sends the first weights.

    Args:
      train: the run.
      run_dir: whose checkpoints it writes.
      step: updates of the checkpoint that the controller goes on from, or None.
      version: of the weights that the samplers are to have.
      peers: its hosts, and which one this is.
      outbox: takes messages.
      token: of the run.
      fail: takes what a thread died of.
    """

    # The carriers that the last version could not go by.
    _passed_over: tuple[str, ...] = ()
    # That was sent last.
    _version = -1

    def __init__(
        self,
        train: Train,
        *,
        run_dir: str,
        step: int | None,
        version: int,
        peers: Peers,
        outbox: Outbox,
        token: str,
        fail: Callable[[ThreadFailed], None],
    ) -> None:
        own = dataclasses.replace(
            train.mesh, sampler_data=1, sampler_tensor=1, shared=True
        )
        prepare_devices(own, num_hosts=peers.num_hosts)
        check_joined(peers)
        self._train = train
        self._outbox = outbox
        clock = self._clock = outbox.clock
        self._fail = fail
        self._peers = peers
        self._exchange = Exchange(peers)
        self._shelf = self._open_shelf(token)
        devices = meshes.host_devices(own.learner_devices)
        self._learner = build_learner(train, meshes.learner_mesh(own, devices))
        self._vault = self._open(run_dir, step) if peers.leads else None
        first = self._restore(is_resumed=step is not None)
        self._learner.begin_round(version, round_params=first)
        self._learner.compile()
        self._learner.run_shapes()
        counter = CompilationCounter()
        outbox.facts = lambda: {"compilations": counter.count}
        # What the samplers have: a checkpoint between two publishes must hold it.
        self._published = self._learner.export_params() if first is None else first
        self._worker = LearnerWorker(
            self._learner,
            turns=Turns(is_shared=False),
            journal=outbox if peers.leads else Silent(),
            clock=clock,
            post=self._post,
            is_published=first is None,
        )
        # Times are told as intervals; what nobody takes out would grow.
        self._worker.busy = collections.deque(maxlen=0)
        self._worker.thread.start()
        ways = carriers.make(train.cluster, clock=clock)
        self._tries = (-1, 0)
        self._lent: list[Any] = []
        # A number in the name keeps the versions of an earlier life apart.
        self._run = f"{run_dir}#{outbox.epoch}"
        host = peers.index
        distant = meshes.distant_sampler_mesh(train.mesh)
        trained, frozen = offers.wanted(train.decoder, distant)
        self._sender = Sender(self._run, ways, wanted=trained, host=host, clock=clock)
        # The sender of what is frozen keeps its objects alive for samplers to come.
        self._frozen_sender = Sender(
            self._run, ways, wanted=frozen, label="frozen", host=host, clock=clock
        )
        self._send(self._published, version, is_first=True)

    def _open_shelf(self, token: str) -> Shelf:
        """The first host's depot, to which the samplers send what they have sampled."""
        if self._peers.leads:
            self._depot = Depot(ray.util.get_node_ip_address(), token, self._fail)
            self._exchange.share("depot", list(self._depot.address))
            return self._depot
        address = read_address(self._exchange.share("depot", None))
        return FarDepot(address, token, f"learner host {self._peers.index}")

    def _open(self, run_dir: str, step: int | None) -> Vault:
        checkpoints = RunDir(pathlib.Path(run_dir)).checkpoints
        kept = self._train.store.checkpoints_kept
        vault = Vault(
            checkpoints,
            kept,
            resume=step is not None,
            on_failed=lambda error: self._fail(ThreadFailed("checkpoint", error)),
        )
        if vault.step != step:
            raise StoreError(
                f"checkpoint {step} must be readable where the learner runs, got "
                f"{vault.step!r} in {checkpoints}"
            )
        return vault

    def _restore(self, *, is_resumed: bool) -> Any:
        """The round's weights where they are no more the learner's."""
        if self._peers.is_alone:
            assert self._vault is not None
            saved = self._vault.restore(self._learner)
            published = None if saved is None else saved.published
        else:
            published = restore(
                self._exchange, self._vault, self._learner, is_resumed=is_resumed
            )
        if is_resumed:
            return published
        if self._train.warm_up.updates:
            warm_up_policy(
                self._train,
                open_inputs(self._train).source,
                self._learner,
                say=self._say,
            )
        return None

    def _say(self, text: str) -> None:
        if self._peers.leads:
            self._outbox.post("say", text)

    # Commands, in order on the learner's thread.

    def accumulate(self, update: int, groups: Any) -> None:
        """Take completions and add their gradient sums."""
        self._worker.thread.do(self._accumulate, update, groups)

    def forget(self, keys: Sequence[Key]) -> None:
        """Nobody will ask for these completions any more."""
        self._depot.drop(keys)

    def step(self, effect: StepUpdate) -> None:
        """Step the optimizer."""
        self._worker.thread.do(self._worker.step, effect)

    def publish(self, version: int) -> None:
        """Send the weights."""
        self._worker.thread.do(self._worker.publish, version, self._send)

    def again(self, version: int) -> None:
        """Send the last version once more: a sampler did not get it."""
        self._worker.thread.do(self._again, version)

    def save(self, updates: int, record: dict[str, Any], *, is_final: bool) -> None:
        """Commit state and record."""
        self._worker.thread.do(self._save, updates, record, is_final)

    def export(self, path: str) -> None:
        """Write the policy as a folder."""
        self._worker.thread.do(self._export, pathlib.Path(path))

    def rest(self) -> None:
        """Say when all that was asked is done."""
        if self._peers.leads:
            self._worker.thread.do(self._outbox.post, "done", "rest")

    def add(self, num_trained: int, names: Sequence[str], refs: Sequence[Any]) -> None:
        """Take in the gradient sums of a helper."""
        self._worker.thread.do(self._add, num_trained, names, refs)

    def lend(self, update: int) -> None:
        """Give a helper the weights that `update` is computed with."""
        self._worker.thread.do(self._lend, update)

    # On the learner's thread.

    def _accumulate(self, update: int, groups: Any) -> None:
        within_s = self._train.cluster.heartbeat_s
        self._worker.accumulate(fetch(groups, self._shelf, within_s), update)

    def _add(self, num: int, names: Sequence[str], refs: Sequence[Any]) -> None:
        try:
            sums = leaves.get(names, refs, self._learner.abstract_sums())
        except RayError as error:
            raise PayloadLostError(str(error).split("\n")[0]) from error
        self._learner.add_sums(sums, num)

    def _lend(self, update: int) -> None:
        names, self._lent = leaves.put(self._learner.export_params())
        self._outbox.post("lent", update, names, refs=self._lent)

    def _send(self, params: Any, version: int, is_first: bool = False) -> None:
        start_s = self._clock.now_s()
        self._published, self._version = params, version
        offer = self._sender.publish(params, version, within_s=offers.WITHIN_S)
        still = None
        if is_first:
            still = self._frozen_sender.publish(
                self._learner.frozen, version, within_s=offers.WITHIN_S
            )
        self._offer(offer, still, version, start_s)

    def _offer(
        self, offer: Offer, still: Offer | None, version: int, start_s: float
    ) -> None:
        """Offer a version, and what is frozen; the first host has all hosts' shards."""
        offer = self._merged(offer)
        still = None if still is None else self._merged(still)
        if not self._peers.leads:
            return
        self._say_passed_over()
        frozen = None if still is None else offers.put(still)
        self._outbox.newest.put(version, offers.put(offer), frozen)
        depot = list(self._depot.address)
        self._outbox.post("weights", version, self._run, start_s, depot)

    def _say_passed_over(self) -> None:
        """By which carriers weights can't go, where that is news."""
        found = self._sender.passed_over
        names = tuple(one.partition(":")[0] for one in found)
        if found and names != self._passed_over:
            self._say(f"weights go another way, not by {'; '.join(found)}")
        self._passed_over = names

    def _again(self, version: int) -> None:
        if version != self._version:
            # A newer one is on its way, and would go by the old one's number.
            return
        last, tries = self._tries
        self._tries = version, 1 + (tries if version == last else 0)
        # What is frozen may have been what did not arrive.
        without = carriers.passed_over(self._train.cluster, self._tries[1])
        senders = self._sender, self._frozen_sender
        offer, still = (s.again(without, within_s=offers.WITHIN_S) for s in senders)
        if offer is not None:
            self._offer(offer, still, version, self._clock.now_s())

    def _merged(self, offer: Offer) -> Offer:
        if self._peers.is_alone:
            return offer
        own = [] if self._peers.leads else [offers.put(offer)]
        others = self._exchange.collect("offer", None, own)
        if others is None:
            return offer
        try:
            return merge([offer, *(offers.get(told) for _, (told,) in others)])
        except RayError as error:
            raise CarrierError(f"Ray lost an offer: {error}") from error

    def _save(self, updates: int, record: dict[str, Any], is_final: bool) -> None:
        def write(state: Any, written: Callable[[], None]) -> None:
            def durable(updates: int) -> None:
                written()
                now_s = self._clock.now_s()
                self._post(CheckpointDurable(now_s=now_s, updates=updates))

            tree = {"learner": state}
            if not self._worker.is_published:
                tree["published"] = self._published
            whole = self._exchange.gather("state", tree)
            if self._vault is None:
                return
            self._vault.save(
                updates,
                whole["learner"],
                published=whole.get("published"),
                record=record,
                wait=is_final,
                on_durable=durable,
            )

        self._worker.save(write)

    def _export(self, path: pathlib.Path) -> None:
        params = self._exchange.gather("policy", self._learner.params)
        if not self._peers.leads:
            return
        tokenizer = open_inputs(self._train).tokenizer
        export_policy(self._train, params, tokenizer, path)
        self._outbox.post("done", "export")

    def _post(self, event: Event | ThreadFailed) -> None:
        if isinstance(event, ThreadFailed):
            self._fail(event)
            return
        name, plain = type(event).__name__, wire.plain(event)
        if isinstance(event, UpdateStepped):
            metrics = self._worker.metrics.pop(event.update)
            advantages = self._worker.advantages.pop(event.update)
            # Whole on every device, so the hosts must agree to the last bit.
            self._exchange.trace.add(wire.to_bytes([event.update, metrics]))
            if not self._peers.leads:
                return
            rows = [[*group, row] for group, row in advantages.items()]
            self._outbox.post("stepped", plain, metrics, rows)
        elif self._peers.leads:
            self._outbox.post("event", name, plain)


def restore(
    exchange: Exchange, vault: Vault | None, learner: Learner, *, is_resumed: bool
) -> Any:
    """Load the first host's checkpoint into the learner of a slice.

    Args:
      exchange: between its hosts.
      vault: on the first.
      learner: takes its arrays.
      is_resumed: whether there is a checkpoint.

    Returns:
      The samplers' weights where they differ from the learner's, on its devices.

    Raises:
      StoreError: it can't be read, or belongs to adapters over other weights.
    """
    # A program over all hosts.
    base = base_of(learner)
    if vault is not None:
        vault.check(base)
    if not is_resumed:
        return None
    state, params = learner.abstract_state(), learner.abstract_params()
    arrays: dict[str, Any] = {}
    if vault is not None:
        arrays = vault.read(on_host(state), on_host(params))
    has_published = exchange.share("published", "published" in arrays)
    learner.load_state(exchange.spread("state", arrays.get("learner"), state))
    if not has_published:
        return None
    return exchange.spread("policy", arrays.get("published"), params)
