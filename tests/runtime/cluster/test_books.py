"""What the controller keeps of a run over processes, without a process."""

import dataclasses
import socket
import threading
from unittest import mock

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from jigsaw_jax.records import (
    FinishReason,
    Group,
    GroupId,
    GroupsAccumulated,
    Prompt,
    Sample,
    SampleFinished,
    SampleId,
    SampleStarted,
    Score,
    Segment,
    StepUpdate,
)
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import fleet, remote
from jigsaw_jax.runtime.cluster.desk import wait_until_forsaken
from jigsaw_jax.runtime.cluster.ears import Ears
from jigsaw_jax.runtime.cluster.guests import Guests
from jigsaw_jax.runtime.cluster.hand import Hand
from jigsaw_jax.runtime.cluster.head import (
    ClusterError,
    Place,
    await_listener,
    num_local,
)
from jigsaw_jax.runtime.cluster.offers import Weights
from jigsaw_jax.runtime.cluster.outbox import Outbox
from jigsaw_jax.runtime.cluster.publishing import Publishing
from jigsaw_jax.runtime.cluster.remote import Register, Remote
from jigsaw_jax.runtime.cluster.roster import Roster
from jigsaw_jax.runtime.cluster.shares import Shares
from jigsaw_jax.runtime.intervals import Intervals
from jigsaw_jax.runtime.payloads import Payloads

ONE = SampleId("u", 0, 0)


class Wire:
    """In the place of Ray's handle: keeps what is sent."""

    def __init__(self):
        self.batches = []
        self.do = self

    def remote(self, batch, refs):
        del refs
        self.batches.append(wire.from_bytes(batch))


def group(order, blobs=("a",)):
    group_id = GroupId(f"u{order}", 0)
    samples = tuple(
        Remote(
            id=SampleId(*group_id, index),
            attempt=0,
            num_sampled=3,
            is_truncated=False,
            blob=blob,
            offset=10 * index,
            size=10,
        )
        for index, blob in enumerate(blobs)
    )
    return Group(
        id=group_id,
        order=order,
        prompt=Prompt(uid=group_id.uid, tokens=(1,), text="", answer="", task=""),
        samples=samples,
        scores=tuple(Score(value=1.0) for _ in samples),
    )


def sample():
    segment = Segment(tokens=(5,), logprobs=(-1.0,), versions=(0,))
    return Sample(
        id=ONE, attempt=0, segments=(segment,), finish_reason=FinishReason.STOP
    )


def accumulated(groups):
    ids = tuple(one.id for one in groups)
    return GroupsAccumulated(now_s=1.0, groups=ids, update=4)


# Register.


def test_only_who_has_an_attempt_is_heard():
    register = Register()
    register.admit(ONE, 1, "sampler-0/2")
    assert register.from_worker(ONE, 1, "sampler-0/2") is not None
    # An earlier life of it, another attempt, another worker, and no such sample.
    assert register.from_worker(ONE, 1, "sampler-0/1") is None
    assert register.from_worker(ONE, 0, "sampler-0/2") is None
    assert register.from_worker(ONE, 1, "sampler-1/1") is None
    assert register.from_worker(SampleId("v", 0, 0), 0, "sampler-0/2") is None
    assert register.num_ignored == 4


def hearing(payloads):
    """Ears, a register, a worker that speaks, and what is posted."""
    roster = mock.Mock(spec=Roster, lock=threading.RLock(), flush=lambda: None)
    register, posted = Register(), []
    ears = Ears(
        roster,
        register=register,
        guests=mock.Mock(spec=Guests),
        shares=Shares(),
        payloads=payloads,
        journal=mock.Mock(spec=Intervals),
        post=posted.append,
        say=print,
    )
    return ears, register, mock.Mock(spec=Hand, worker="a/1", offset_s=0.0), posted


def test_what_is_said_twice_late_or_by_another_is_counted_and_changes_nothing():
    payloads = Payloads(1)
    payloads.add_prompts([group(0).prompt])
    ears, register, hand, posted = hearing(payloads)
    one = SampleId("u0", 0, 0)
    register.admit(one, 1, "a/1")

    def hear(attempt):
        event = SampleFinished(
            now_s=2.0, id=one, attempt=attempt, num_tokens=3, version_min=0
        )
        finished = ["finished", wire.plain(event), False, 0, 10]
        score = ["score", wire.plain(one), attempt, wire.plain(Score(value=1.0))]
        ears.hear(hand, [finished, score], "blob", None)
        return event

    event = hear(1)
    assert posted == [event]
    assert register.num_ignored == 0
    hear(1)
    hear(0)
    hand.worker = "a/2"
    hear(1)
    assert posted == [event]
    assert register.num_ignored == 6
    assert payloads.sample(one, 1).blob == "blob"


def test_another_host_s_clock_is_lined_up_before_an_event_is_read():
    ears, register, hand, posted = hearing(Payloads(1))
    hand.offset_s = 0.5
    register.admit(ONE, 0, "a/1")
    event = SampleStarted(now_s=2.0, id=ONE, attempt=0)
    message = ["event", "SampleStarted", wire.plain(event)]
    ears.hear(hand, [message], None, None)
    assert posted == [dataclasses.replace(event, now_s=2.5)]
    with pytest.raises(wire.WireError):
        ears.hear(hand, [["event", "SampleStarted", []]], None, None)


def test_what_is_lost_with_a_worker_is_what_holds_no_slot_and_has_no_score():
    register = Register()
    ids = [SampleId("u", 0, index) for index in range(5)]
    for sample_id in ids:
        register.admit(sample_id, 0, "a/1")
    register.admit(SampleId("v", 0, 0), 0, "b/1")
    running, finished, scored, paused, dropped = (
        register.from_worker(i, 0, "a/1") for i in ids
    )
    assert running
    assert finished
    assert scored
    assert paused
    assert dropped
    finished.is_finished = scored.is_finished = True
    scored.score = Score(value=1.0)
    paused.is_paused = True
    dropped.is_finished = True
    register.drop(ids[4])
    assert not running.is_finished
    assert register.lost_with("a/1") == [(ids[1], 0), (ids[3], 0)]


# Shares.


def test_without_a_helper_the_learner_has_all_and_reports_all():
    shares, groups = Shares(), [group(0), group(1)]
    assert shares.hand(groups, has_helper=False) == (groups, [])
    assert shares.accumulated(accumulated(groups)) == accumulated(groups)


def test_a_hand_off_is_reported_once_both_have_their_part():
    shares, groups = Shares(), [group(0), group(1), group(2), group(3)]
    own, helped = shares.hand(groups, has_helper=True)
    assert [*helped, *own] == groups
    assert len(own) == len(helped) == 2
    assert shares.accumulated(accumulated(helped)) is None
    # A second report of the same part does not stand for the other's.
    assert shares.accumulated(accumulated(helped)) is None
    assert shares.accumulated(accumulated(own)) == accumulated(groups)
    assert shares.helped == helped


def test_single_groups_go_to_learner_and_helper_in_turn():
    shares = Shares()
    parts = [shares.hand([group(i)], has_helper=True) for i in range(4)]
    assert sorted(len(own) for own, _ in parts) == [0, 0, 1, 1]
    assert [len(own) + len(helped) for own, helped in parts] == [1] * 4


def test_a_step_waits_for_the_sums_and_is_taken_once():
    shares = Shares()
    shares.hand([group(0), group(1)], has_helper=True)
    step = shares.step = StepUpdate(update=4, groups=())
    assert shares.take_step() == step
    assert shares.take_step() is None
    assert shares.helped == []


def test_weights_that_are_lent_let_a_held_hand_off_go():
    handed_out = []
    shares = Shares(3, lambda: handed_out.append(shares.lent))
    assert [shares.goes_on(update) for update in range(6)] == [True, True, False] * 2
    shares.lending = 4
    shares.arrived(("sampler-0/1", 4))
    shares.arrived(None)
    assert handed_out == [("sampler-0/1", 4), None]
    assert shares.lending == -1


# Messages.


def test_each_object_is_named_once_however_many_completions_lie_in_it():
    told, blobs = remote.message([group(0, ("a", "b")), group(1, ("b", "c"))])
    assert blobs == ["a", "b", "c"]
    places = [places for _, _, _, places, _ in told]
    assert places == [[[0, 0, 10], [1, 10, 10]], [[1, 0, 10], [2, 10, 10]]]
    wire.to_bytes(told)


def test_a_batch_has_its_completions_beside_it_at_their_places():
    outbox = Outbox(Clock(), epoch=3)
    outbox.post("finished", 1, sample=sample())
    outbox.post("finished", 2, sample=sample())
    head, payload, refs = outbox.take(0.0)
    values = wire.from_bytes(head)
    assert values["epoch"] == 3
    assert refs == []
    assert len(values["items"]) == 2
    for _, _, offset, size in values["items"]:
        assert wire.read_sample(payload[offset : offset + size]) == sample()
    assert wire.from_bytes(outbox.take(0.0)[0])["items"] == []


def test_a_new_epoch_lets_go_what_was_said_before_but_not_of_failures():
    outbox = Outbox(Clock(), epoch=1)
    outbox.post("event", "of epoch 1")
    outbox.post("failed", "a thread")
    outbox.begin(2)
    outbox.post("score", "of epoch 1, late", epoch=1)
    outbox.post("event", "of epoch 2", epoch=2)
    items = wire.from_bytes(outbox.take(0.0)[0])["items"]
    assert items == [["failed", "a thread"], ["event", "of epoch 2"]]


def test_an_interval_waits_for_a_message_to_travel_with():
    outbox = Outbox(Clock(), epoch=1)
    outbox.interval("sampler", "decode", 1.0, 2.0, tokens=3)
    items = wire.from_bytes(outbox.take(0.01)[0])["items"]
    assert items == [["interval", "sampler", "decode", 1.0, 2.0, {"tokens": 3}]]


# Weights.


def weights(version, frozen=None):
    return Weights(
        version=version,
        run="r",
        start_s=0.0,
        trained="t",
        trained_refs=[],
        frozen=frozen,
        frozen_refs=["f"] if frozen else [],
    )


def test_a_version_is_published_once_when_the_last_has_it_or_is_gone():
    publishing = Publishing()
    sent = publishing.begin(weights(1), ["a/1", "b/1"])
    assert publishing.take_done() is None
    publishing.drop("a/1")
    assert publishing.take_done() is None
    publishing.drop("b/1")
    assert publishing.take_done() == sent
    assert publishing.take_done() is None
    assert publishing.version == 1


def test_what_is_frozen_stays_with_every_later_version():
    publishing = Publishing()
    publishing.begin(weights(1, frozen="base"), [])
    later = publishing.begin(weights(2), [])
    assert (later.version, later.frozen, later.frozen_refs) == (2, "base", ["f"])


# Addresses.


def test_an_address_is_a_number_of_local_workers_or_of_a_cluster():
    assert num_local("local:3") == 3
    assert num_local("auto") == 0
    assert num_local("10.0.0.1:6379") == 0


@pytest.mark.parametrize("address", ["local:1", "local:", "local:x", "local:-3"])
def test_a_local_cluster_has_at_least_two_workers(address):
    with pytest.raises(ClusterError, match="at least 2"):
        num_local(address)


def test_an_address_where_nobody_listens_is_told_and_one_that_comes_is_awaited():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionError, match="no Ray cluster listens there"):
            await_listener(address, within_s=0.0)
        threading.Timer(0.2, taken.listen).start()
        await_listener(address, within_s=60.0)
    # Whatever else Ray may know it is asked itself.
    await_listener("auto", within_s=0.0)
    await_listener("ray://127.0.0.1:1", within_s=0.0)


def test_a_prompt_goes_along_once_in_every_batch_that_admits_samples_of_it():
    # A batch may end between two samples of one turn: the other thread sends it too.
    sent = Wire()
    hand = Hand("sampler-0", "sample", 1, Place(), sent)
    asked = Prompt(uid="u", tokens=(1,), text="", answer="", task="")
    for _ in range(2):
        for index in range(2):
            hand.prompt(asked)
            hand.command("admit", [index])
        hand.flush()
    prompt = ["prompt", [wire.to_text(wire.plain(asked))], 0, 0]
    samples = [["admit", [[index]], 0, 0] for index in range(2)]
    assert sent.batches == [[n, [prompt, *samples]] for n in (1, 2)]


# A worker's own errors.


def test_an_error_of_a_worker_s_own_code_is_no_loss():
    trace = RayTaskError("drain", "Traceback: ZeroDivisionError", ZeroDivisionError())
    assert fleet._is_fault(trace)
    assert fleet._is_fault(ActorDiedError(trace))
    assert not fleet._is_fault(ActorDiedError())
    assert not fleet._is_fault(ActorUnavailableError("no answer", None))
    assert fleet._reason(ActorDiedError()) == "its process has ended"
    assert fleet._reason(ActorUnavailableError("no", None)) == "it can't be reached"


def test_a_worker_ends_when_nobody_has_asked_it_for_so_long():
    outbox, ended = Outbox(Clock(), epoch=1), threading.Event()
    args = outbox, 0.5, ended.set, 0.1
    threading.Thread(target=wait_until_forsaken, args=args, daemon=True).start()
    for _ in range(8):
        outbox.take(0.1)
    assert not ended.is_set()
    assert ended.wait(10.0)
