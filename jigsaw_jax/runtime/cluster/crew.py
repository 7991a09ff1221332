"""The crew of a run over processes: effects to workers, their messages to the loop.

    control loop --commands--> Hand (one frame a turn) ==line==> desk of a worker
    control loop <--events----   Ears.hear           <==line==  outbox of a worker

While it serves, the control loop listens itself, between two turns. Every thread goes
through one lock, held for bookkeeping alone. Completions never pass through here: a
sampler sends them to the learner's depot, and this process has keys.
"""

import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jigsaw_jax import records
from jigsaw_jax.records import Event, Group, GroupId, Prompt, Sample, SampleId, Score
from jigsaw_jax.reward.pool import KILL_S, RewardPool
from jigsaw_jax.runtime import collector, wire
from jigsaw_jax.runtime.cluster.ears import Ears
from jigsaw_jax.runtime.cluster.fleet import Fleet
from jigsaw_jax.runtime.cluster.guests import Guests
from jigsaw_jax.runtime.cluster.hand import Hand, can_begin
from jigsaw_jax.runtime.cluster.places import Letters, Stock, message
from jigsaw_jax.runtime.cluster.reports import Reports
from jigsaw_jax.runtime.cluster.roster import Roster
from jigsaw_jax.runtime.cluster.shares import Shares
from jigsaw_jax.runtime.cluster.tables import Admitted
from jigsaw_jax.runtime.evaluation import Evaluator
from jigsaw_jax.runtime.inputs import Inputs
from jigsaw_jax.runtime.seat import Seat
from jigsaw_jax.sample.loop import SampleRequest
from jigsaw_jax.schedule.pipeline import Pipeline

# In a turn of the control loop, between which it hears. So many take some 2 ms.
ADMISSIONS_MAX = 192

_admitted = wire.row_maker(Admitted)


class ClusterCrew:
    """Processes on one host or many; see `runtime.crew.Crew`.

    Args:
      seat: where it works.
      fleet: the processes.
      roster: of this life of the control loop.
      problems: tokenizer and data.

    Attributes:
      pipeline: the state machine.
      source: training problems.
      tokenizer: text to tokens and back.
      evaluator: held-out accuracy.
      is_resumed: whether there is a checkpoint.
      learner_busy: when the learner computed.
      sampler_busy: when the samplers did.
    """

    def __init__(
        self, seat: Seat, *, fleet: Fleet, roster: Roster, problems: Inputs
    ) -> None:
        train, record = seat.train, seat.record
        self._train, self._record = train, record
        self._fleet, self._roster = fleet, roster
        self._pool = RewardPool(train.reward, on_failed=roster.fail)
        self._guests = Guests(roster)
        per_round = train.pipeline.groups_per_round // train.pipeline.groups_per_update
        self._shares = Shares(per_round, self._hand_out)
        self._letters = Letters()
        self._stock = Stock(seat.payloads, fleet.token, train.cluster.heartbeat_s)
        # Samplers score unasked; only what is shuffled goes by the scoring desk.
        asks_scores = train.reward.shuffled
        self._reports = reports = Reports(
            self._stock, seat.post, journal=record.journal, asks_scores=asks_scores
        )
        self._register = reports.register
        self._ears = ears = Ears(
            roster,
            reports=reports,
            guests=self._guests,
            shares=self._shares,
            journal=record.journal,
            post=seat.post,
            say=seat.progress.say,
        )
        ears.is_published = not record.vault.record.get("has_published", False)
        self._bases: dict[str, int] = {}
        self.pipeline = Pipeline(
            train.pipeline,
            updates=train.updates,
            checkpoint_every=train.store.checkpoint_every,
            asks_scores=asks_scores,
            admissions_max=ADMISSIONS_MAX,
        )
        self.is_resumed = record.vault.step is not None
        if self.is_resumed:
            self.pipeline.restore(record.vault.record["pipeline"])
        self.source, self.tokenizer = problems.source, problems.tokenizer
        self.evaluator = Evaluator(
            train, problems.held_out, problems.tokenizer, self._pool.submit
        )
        self.learner_busy = ears.learner_busy
        self.sampler_busy = ears.sampler_busy
        roster.on_lost = self._sampler_lost
        roster.on_joined = lambda _: self._guests.joined()

    def gather(self) -> None:
        """Wait until samplers are ready for the learner's first round."""
        self._fleet.listen(
            self._ears.hear,
            self._roster.lost,
            lambda failed: self._roster.fail(failed.error),
            self._roster.look_around,
            self.flush,
        )
        self._roster.open(
            run_dir=str(self._record.path.absolute()),
            step=self._record.vault.step,
            version=self.pipeline.version,
        )
        roster, epoch = self._roster, self._fleet.epoch
        roster.wait_until(
            lambda: can_begin(roster.hands(), epoch=epoch, now_s=roster.now_s())
        )

    # Effects, on the control loop's thread.

    def start(self) -> Sequence[Event]:
        """Who is there; whoever comes later says so by an event."""
        self._fleet.listening.by_loop = True
        with self._roster.lock:
            self._roster.settle()
            hands = self._roster.samplers()
            self._bases = {
                hand.name: hand.facts.get("compilations", 0)
                for hand in self._roster.hands()
                # Who is late still compiles.
                if hand.is_joined or hand.role == "train"
            }
            return [self._roster.joined(hand) for hand in hands]

    def wait(
        self, events: queue.SimpleQueue[Any], timeout_s: float | None
    ) -> list[Any]:
        """Listen to the workers until there are events."""
        return self._fleet.listening.wait(events, timeout_s)

    def flush(self) -> None:
        """One call a worker for all that it was to be told in a turn."""
        with self._roster.lock:
            self._fleet.flush()

    def admit(
        self, samples: Sequence[records.AdmitSample], prompt: Callable[[str], Prompt]
    ) -> None:
        """Start samples; one that was stopped elsewhere begins anew, as the same."""
        with self._roster.lock:
            hands = {one: self._roster.find(one) for one in {s.worker for s in samples}}
            uid, letter = None, b""
            for sample, attempt, worker, version, is_resumed in samples:
                hand = hands[worker]
                if hand is None:
                    # Its loss is on its way to the pipeline, which then sends it again.
                    continue
                is_kept = is_resumed and self._is_kept(sample, attempt, worker)
                number = self._register.admit(sample, attempt, worker)
                if sample[0] != uid:
                    uid = sample[0]
                    letter = self._letters.write(prompt(uid))
                row = _admitted((number, *sample, attempt, version, is_kept))
                hand.admit(row, letter)

    def _is_kept(self, sample_id: SampleId, attempt: int, worker: str) -> bool:
        """Whether a sample can go on there; where another worker has it, it can't."""
        known = self._register.find(sample_id, attempt)
        if known is None or known.worker == worker:
            return True
        self._cancel(sample_id, attempt, known.worker)
        return False

    def cancel(self, effect: records.CancelSample) -> None:
        """Stop an attempt."""
        with self._roster.lock:
            known = self._register.find(effect.id, effect.attempt)
            if known is not None:
                self._cancel(effect.id, effect.attempt, known.worker)
                self._register.drop(effect.id)

    def _cancel(self, sample_id: SampleId, attempt: int, worker: str) -> None:
        hand = self._roster.find(worker)
        if hand is not None:
            effect = records.CancelSample(id=sample_id, attempt=attempt, worker=worker)
            hand.command("cancel", wire.plain(effect))

    def pause(self, effect: records.PauseSample) -> None:
        """Stop an attempt and keep what it has sampled."""
        with self._roster.lock:
            known = self._register.find(effect.id, effect.attempt)
            hand = self._roster.find(effect.worker)
            if known is None or hand is None:
                self._fail(effect.id, effect.attempt)
                return
            known.is_paused = True
            hand.command("pause", wire.plain(effect))

    def score(
        self, prompt: Prompt, sample: Any, receive: Callable[[Score], None]
    ) -> None:
        """Take the score that the sampler's host has made, or will."""
        del prompt
        with self._roster.lock:
            known = self._register.find(sample.id, sample.attempt)
            if known is None:
                return
            known.receive = receive
            if known.score is not None:
                receive(known.score)
            elif self._roster.find(known.worker) is None:
                self._fail(sample.id, sample.attempt)

    def _fail(self, sample_id: SampleId, attempt: int) -> None:
        self._reports.fail(sample_id, attempt, self._roster.now_s())

    def sample_guest(
        self, request: SampleRequest, receive: Callable[[Sample], None]
    ) -> None:
        """Sample on whichever sampler has fewest guests."""
        with self._roster.lock:
            self._guests.add(request, receive)

    def accumulate(self, groups: Sequence[Group], update: int) -> None:
        """Tell the learner, and a helper if there is one, where whole groups lie."""
        with self._roster.lock:
            self._shares.held = groups, update
            self._hand_out()

    def _hand_out(self) -> None:
        """Share out the hand-off that is held, once it is known between whom."""
        if self._shares.held is None:
            return
        groups, update = self._shares.held
        helper = self._roster.helper()
        # As a sampler it was sent the weights of a round's first update.
        is_first = update == self.pipeline.version_updates
        if helper and not is_first and self._shares.lent != (helper.worker, update):
            if self._shares.lending == update:
                return
            helper = None
        self._shares.held = None
        own, helped = self._shares.hand(groups, has_helper=helper is not None)
        if own:
            self._hand_over(self._roster.learner, own, update)
        if helper is not None and helped:
            self._hand_over(helper, helped, update)

    def _hand_over(self, hand: Hand, groups: Sequence[Group], update: int) -> None:
        hand.command("accumulate", update, message(groups, self._letters))

    def step(self, effect: records.StepUpdate) -> None:
        """Step the optimizer, once the sums of a helper are in."""
        with self._roster.lock:
            helper = self._roster.helper()
            if helper is not None and self._shares.helped:
                self._shares.step = effect
                helper.command("hand_in", effect.update)
            else:
                self._roster.learner.command("step", wire.plain(effect))
            # It lets go what ended before.
            self._roster.learner.command("forget", self._stock.take_unused())
        # Of a few records the collector would not look by itself; of many it must not.
        collector.tidy()

    def publish(self, version: int) -> None:
        """Have the learner send its weights."""
        with self._roster.lock:
            self._ears.is_published = True
            self._roster.learner.command("publish", version)

    def save(self, updates: int, record: dict[str, Any], *, is_final: bool) -> None:
        """Have the learner commit its state with this record."""
        with self._roster.lock:
            self._roster.learner.command("save", updates, record, is_final)

    def take_metrics(self, update: int) -> dict[str, float]:
        """The learner's numbers of an update."""
        return self._ears.metrics.pop(update)

    def take_advantages(self, update: int) -> dict[GroupId, list[float]]:
        """What an update's groups trained with, those of a helper excepted."""
        return self._ears.advantages.pop(update)

    def whole(self, group: Group) -> Group:
        """The group with its completions; without any where their host is gone."""
        return self._stock.whole(group)

    def forget(self, groups: Iterable[GroupId]) -> None:
        """Their samples are asked for no more."""
        with self._roster.lock:
            for group in groups:
                self._register.end(group)
                self._letters.forget(group.uid)

    @property
    def num_timeouts(self) -> int:
        """Scores that hung, on all hosts."""
        return sum(hand.facts.get("timeouts", 0) for hand in self._roster.hands())

    @property
    def num_compilations(self) -> int:
        """Programs compiled since `start`, by those that were there then."""
        return sum(
            hand.facts.get("compilations", 0) - self._bases[hand.name]
            for hand in self._roster.hands()
            if hand.name in self._bases and hand.incarnation == 1
        )

    def workers(self) -> list[Mapping[str, Any]]:
        """Every process."""
        return self._roster.rows()

    # With no sample under way.

    def sample_idle(self, requests: Iterable[SampleRequest]) -> list[Sample]:
        """Sample on all samplers and wait."""
        asked = list(requests)
        samples: list[Sample] = []
        for request in asked:
            self.sample_guest(request, samples.append)
        self.flush()
        self._roster.wait_until(lambda: len(samples) == len(asked))
        return samples

    def rest(self) -> None:
        """Wait for the learner; what samplers still do is let go."""
        self._fleet.listening.by_loop = False
        with self._roster.lock:
            self._guests.clear()
        self._ask("rest")
        self._record.journal.mark(
            "cluster",
            "ignored",
            self._roster.now_s(),
            messages=self._register.num_ignored,
            batches=self._fleet.num_stale,
        )

    def _ask(self, name: str, *values: Any) -> None:
        self._ears.done.discard(name)
        with self._roster.lock:
            self._roster.learner.command(name, *values)
        self.flush()
        self._roster.wait_until(lambda: name in self._ears.done)

    def load_last(self) -> None:
        """Publish once more, unless the samplers have the last weights."""
        if self._ears.is_published:
            return
        version = self.pipeline.version + 1
        self.publish(version)
        self.flush()
        there = self._roster.samplers
        self._roster.wait_until(lambda: {hand.version for hand in there()} == {version})

    def export(self) -> None:
        """Have the learner write the policy's folder, where `Store.export` asks."""
        if self._train.store.export == "hf":
            self._ask("export", str(self._record.export_path.absolute()))

    def close(self) -> None:
        """End the learner; samplers stay for the next life, or end with the fleet."""
        self._fleet.listening.by_loop = False
        self._pool.close()
        self._roster.close()
        self._stock.close()

    def kill(self) -> None:
        """End every process."""
        self._pool.close(KILL_S)
        self._fleet.close()

    # Who comes and goes.

    def _sampler_lost(self, hand: Hand) -> None:
        for sample_id, attempt in self._register.lost_with(hand.worker):
            self._fail(sample_id, attempt)
        self._guests.lost(hand.worker)
        if hand.role == "help" and self._shares.helped:
            # Its sums are gone: the learner adds these groups, and then steps.
            update = self.pipeline.updates_done
            self._hand_over(self._roster.learner, list(self._shares.helped), update)
            step = self._shares.take_step()
            if step is not None:
                self._roster.learner.command("step", wire.plain(step))
        if hand.role == "help":
            self._shares.arrived(None)
