"""Versions that arrive while they are made: whole, the very bits, and nothing left."""

import contextlib
import dataclasses
import gc
import itertools
import logging
import threading
import weakref

import jax
import numpy as np
import pytest

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.lines.line import LineClosedError
from jigsaw_jax.runtime.weights import (
    BaseVersionError,
    CarrierError,
    CorruptError,
    MismatchError,
    cutting,
    merge,
    snapshot,
)
from jigsaw_jax.runtime.weights import manifest as manifests
from jigsaw_jax.runtime.weights.arena import Arena
from jigsaw_jax.runtime.weights.carriers import lines
from jigsaw_jax.runtime.weights.carriers.lines import LineCarrier
from jigsaw_jax.runtime.weights.piece import Piece
from tests.runtime.weights import two_meshes as two
from tests.waiting import wait_until

# More than it takes, also where others have the cores.
SOON_S = 20.0
SIZES = [5, 0, 70_000]


class Slow(LineCarrier):
    """Keeps no promise but those that a test lets it keep."""

    def __init__(self):
        super().__init__("127.0.0.1", clock=Clock())
        self.work = []
        self.served = []
        self.is_dead = False
        self.written = threading.Condition()

    def keep(self, ticket, pieces):
        with self.written:
            self.work.append((ticket, pieces))
            self.written.notify_all()

    def _serve(self, name, line):
        self.served.append(line)
        if self.is_dead:
            line.close()
        super()._serve(name, line)

    def die(self):
        """All that others see of its process is gone."""
        self.is_dead = True
        self.close()
        for line in self.served:
            line.close()

    def keep_some(self, order):
        """Keep these promises, by their place among all."""
        for place in order:
            super().keep(*self.work[place])


class Watched(Arena):
    """Knows of every block whether anybody still has it."""

    def __init__(self):
        super().__init__(free_max=40)
        self.leases = []
        self.made = 0

    def _take(self, num_bytes):
        block = super()._take(num_bytes)
        self.made += block is None
        return block

    def lease(self, num_bytes):
        leased = super().lease(num_bytes)
        # What was leased is a view of the whole, with which its memory goes.
        self.leases.append((weakref.ref(leased.base), num_bytes))
        return leased

    @property
    def num_bytes(self):
        return sum(size for whole, size in self.leases if whole() is not None)


@contextlib.contextmanager
def opened(*carriers):
    try:
        yield carriers
    finally:
        for carrier in carriers:
            carrier.close()


@pytest.fixture(autouse=True)
def small_payloads(monkeypatch):
    """A version has many."""
    monkeypatch.setattr(cutting, "PAYLOAD_BYTES", 1000)
    monkeypatch.setattr(lines, "FRAME_BYTES", 300)


@pytest.fixture
def ends():
    with opened(*(LineCarrier("127.0.0.1", clock=Clock()) for _ in "12")) as both:
        yield both


@pytest.fixture
def slow():
    near, far = Slow(), LineCarrier("127.0.0.1", clock=Clock())
    with opened(near, far) as both:
        yield both


def wanted_by(params):
    return {"wanted": two.wanted_like(params)}


def deadline_s(seconds=SOON_S):
    return Clock().now_s() + seconds


def in_background(function, *args):
    """What a call on another thread comes to, once it is asked for."""
    found = []

    def run():
        try:
            found.append((function(*args), None))
        except (CarrierError, CorruptError) as error:
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()

    def result():
        thread.join(3 * SOON_S)
        value, error = found[0]
        if error is not None:
            raise error
        return value

    return result


def pieces(value, sizes=SIZES):
    return [Piece.of(np.full(size, value, np.uint8)) for size in sizes]


def test_a_promised_version_has_the_bits_of_one_that_was_made_before_it_was_offered(
    ends,
):
    near, far = ends
    memory = two.Memory()
    for seed in range(3):
        params = two.learner_tree(seed)
        # Cut for the receiver, and as the learner's shards are.
        options = wanted_by(params) if seed else {}
        promised = two.sender(near, **options).publish(params, seed)
        made = two.sender(memory, **options).publish(params, seed)
        leaves = manifests.from_json(promised.manifest).leaves
        assert not any(shard.checksum for leaf in leaves for shard in leaf.shards)
        got = two.receiver(params, far).receive(promised)
        two.assert_same_bits(got, two.receiver(params, memory).receive(made))
        two.assert_same_bits(got, params)


def test_the_first_payloads_arrive_while_the_last_are_not_written(slow, monkeypatch):
    near, far = slow
    monkeypatch.setattr(lines, "WORD_S", 0.02)
    params = two.learner_tree()
    receiver = two.receiver(params, far, threads=1)
    offer = two.sender(near, **wanted_by(params)).publish(params, 1)
    arrived = threading.Semaphore(0)
    get = far.get_promised

    def counted(*args):
        found = get(*args)
        arrived.release()
        return found

    far.get_promised = counted
    result = in_background(receiver.receive, offer)
    with near.written:
        near.written.wait_for(lambda: len(near.work) == len(offer.tickets), SOON_S)
    num = len(near.work)
    assert num > 3
    near.work.sort(key=lambda work: int(work[0][-1].rpartition(".")[2]))
    for place in range(num - 1):
        near.keep_some([place])
        assert arrived.acquire(timeout=SOON_S)
    assert receiver.version == -1
    near.keep_some([num - 1])
    two.assert_same_bits(result(), params)
    assert receiver.version == 1


def test_a_learner_goes_on_before_its_values_are_on_the_host(ends, monkeypatch):
    near, far = ends
    params = two.learner_tree()
    copied = threading.Event()
    words = snapshot.Box.words.func

    def waits(box):
        assert copied.wait(SOON_S)
        return words(box)

    monkeypatch.setattr(snapshot.Box, "words", property(waits))
    offer = two.sender(near, **wanted_by(params)).publish(params, 0)
    assert not any(near._kept.values())
    copied.set()
    two.assert_same_bits(two.receiver(params, far).receive(offer), params)


def test_payloads_may_be_made_in_any_order(slow):
    near, far = slow
    params = two.learner_tree()
    chance = np.random.default_rng(0)
    sender = two.sender(near, **wanted_by(params))
    receiver = two.receiver(params, far, threads=3)
    for version in range(3):
        near.work.clear()
        offer = sender.publish(params, version)
        sender._settle()
        result = in_background(receiver.receive, offer)
        near.keep_some(chance.permutation(len(near.work)).tolist())
        two.assert_same_bits(result(), params)


def test_two_hosts_promise_their_parts_of_one_version(ends):
    near, far = ends
    params = two.learner_tree()
    offer = two.sender(near).publish(params, 5)
    whole = manifests.from_json(offer.manifest)

    def part(host):
        def every_other(leaf):
            return dataclasses.replace(leaf, shards=leaf.shards[host::2])

        text = two.with_leaves(whole, every_other).to_json()
        return dataclasses.replace(offer, manifest=text)

    two.assert_same_bits(
        two.receiver(params, far).receive(merge([part(1), part(0)])), params
    )
    with pytest.raises(MismatchError, match="must cover"):
        merge([part(0), part(1), part(0)])
    with pytest.raises(MismatchError, match="must cover"):
        merge([part(1)])


def test_a_promise_that_is_kept_twice_or_asked_for_twice_is_the_same(ends):
    near, far = ends
    ticket = near.promise("a")
    for _ in range(2):
        near.keep(ticket, pieces(7))
        for _ in range(2):
            got, _ = far.get_promised("a", ticket, SIZES, deadline_s())
            assert [len(piece) for piece in got] == SIZES
            assert all((piece == 7).all() for piece in got)


@pytest.mark.parametrize("how", ["dropped", "dead"])
def test_a_version_that_is_given_up_changes_nothing_and_leaves_no_memory(
    slow, how, monkeypatch
):
    near, far = slow
    monkeypatch.setattr(lines, "DIAL_S", 0.0)
    near._arena, far._arena = Watched(), Watched()
    params = [two.learner_tree(seed) for seed in range(3)]
    sender = two.sender(near, **wanted_by(params[0]))
    receiver = two.receiver(params[0], far)
    first = sender.publish(params[0], 0)
    sender._settle()
    near.keep_some(range(len(near.work)))
    kept = receiver.receive(first)
    before = far._arena.num_bytes
    near.work.clear()

    offer = sender.publish(params[1], 1)
    sender._settle()
    # Half of it is there when the learner goes on, or is gone.
    near.keep_some(range(len(near.work) // 2))
    result = in_background(receiver.receive, offer)
    if how == "dropped":
        sender.drop_before(2)
    else:
        near.die()
    with pytest.raises(CarrierError, match=r"is gone|is lost"):
        result()
    assert far._arena.num_bytes == before
    assert receiver.version == 0
    two.assert_same_bits(kept, params[0])
    if how == "dropped":
        # What was promised may still be written by then.
        near.keep_some(range(len(near.work)))
        wait_until(lambda: near._arena.num_bytes == 0)
        near.work.clear()
        last = sender.publish(params[2], 2)
        sender._settle()
        near.keep_some(range(len(near.work)))
        two.assert_same_bits(receiver.receive(last), params[2])


@pytest.mark.parametrize("looks", [2, 6, 10, 14])
def test_one_that_ends_within_a_payload_leaves_no_memory_whoever_has_its_error(
    slow, looks, monkeypatch
):
    near, far = slow
    monkeypatch.setattr(lines, "DIAL_S", 0.0)
    far._arena = Watched()
    params = [two.learner_tree(seed) for seed in range(2)]
    sender = two.sender(near, **wanted_by(params[0]))
    receiver = two.receiver(params[0], far, threads=1)
    offers = [sender.publish(tree, version) for version, tree in enumerate(params)]
    sender._settle()
    near.keep_some(range(len(near.work)))
    kept = receiver.receive(offers[0])
    before = far._arena.num_bytes

    bound = far._bound
    looked = itertools.count(1)

    def ends(line, deadline_s):
        bound(line, deadline_s)
        if next(looked) == looks:
            near.die()
            line.close()

    monkeypatch.setattr(far, "_bound", ends)
    with pytest.raises(CarrierError, match="is lost") as found:
        receiver.receive(offers[1])
    assert found.value.__cause__ is not None
    assert far._arena.num_bytes == before
    two.assert_same_bits(kept, params[0])


def test_versions_that_nobody_takes_need_the_memory_of_two(ends):
    near, far = ends
    near._arena = Watched()
    params = two.learner_tree()
    sender = two.sender(near, **wanted_by(params))
    for version in range(5):
        sender.publish(params, version)
        sender._settle()
        one = sum(size for _, size in near._arena.leases) / (version + 1)
        assert near._arena.num_bytes == min(version + 1, 2) * one
    two.assert_same_bits(two.receiver(params, far).receive(two.whole(sender)), params)
    sender.drop_before(5)
    # The thread that sent the last one may have it in hand for a moment more.
    wait_until(lambda: near._arena.num_bytes == 0)


@pytest.mark.slow
def test_the_memory_of_versions_goes_round_at_both_ends(ends, monkeypatch):
    monkeypatch.setattr("jigsaw_jax.runtime.weights.sender.THREADS", 1)
    near, far = ends
    arenas = near._arena, far._arena = Watched(), Watched()
    params = two.learner_tree()
    sender = two.sender(near, **wanted_by(params))
    receiver = two.receiver(params, far, threads=1)
    made = []
    for version in range(8):
        # JAX lets go of memory that it shares when it is next asked for something, or
        # when garbage is collected, which may be at any time.
        gc.collect()
        kept = receiver.receive(sender.publish(params, version))
        two.assert_same_bits(kept, params)
        made.append([arena.made for arena in arenas])
    assert made[0] < made[4] == made[7]


def test_a_newer_version_ends_the_one_before_the_last_for_those_that_wait(slow):
    near, far = slow
    params = two.learner_tree()
    sender = two.sender(near, **wanted_by(params))
    old = sender.publish(params, 0)
    result = in_background(two.receiver(params, far).receive, old)
    for version in (1, 2):
        sender.publish(params, version)
    with pytest.raises(CarrierError, match=r"v0\.0\.1\.\d+ is gone"):
        result()


def test_a_changed_bit_is_an_error_unless_it_comes_right_the_second_time(ends):
    near, far = ends
    params = two.learner_tree()
    sender = two.sender(near, **wanted_by(params))
    receiver = two.receiver(params, far)
    offer = sender.publish(params, 0)
    sender._settle()
    kept = near._kept["v0.0.1.1"]
    kept.block_u8[3] ^= 4
    with pytest.raises(CorruptError, match=r"v0.0.1.1 by line must have checksum"):
        receiver.receive(offer)
    assert receiver.version == -1
    ask = far._ask

    def heals(line, key, *told):
        found = ask(line, key, *told)
        if key == "v0.0.1.1":
            kept.block_u8[3] = good
        return found

    good, far._ask = kept.block_u8[3] ^ 4, heals
    two.assert_same_bits(receiver.receive(offer), params)


def test_a_payload_of_another_version_is_refused_though_its_checksums_fit(ends):
    near, far = ends
    params = [two.learner_tree(seed) for seed in range(2)]
    sender = two.sender(near, **wanted_by(params[0]))
    old, new = (sender.publish(tree, v) for v, tree in enumerate(params))
    other = dict(zip(new.tickets, old.tickets.values(), strict=True))
    mixed = dataclasses.replace(new, tickets=other)
    receiver = two.receiver(params[0], far)
    with pytest.raises(CarrierError, match=r"ticket must be of v1.*got one of 'v0"):
        receiver.receive(mixed)
    # A sender that answers with another payload.
    sender._settle()
    near._kept["v1.0.2.0"] = near._kept["v1.0.2.1"]
    with pytest.raises(CarrierError, match=r"v1.0.2.0 is lost: it must have \d+ bytes"):
        receiver.receive(new)
    assert receiver.version == -1


def test_a_payload_of_another_run_is_refused(ends):
    near, far = ends
    with opened(LineCarrier("127.0.0.1", clock=Clock())) as (other,):
        tickets = [carrier.put("a", pieces(1), 0.0) for carrier in (near, other)]
        # The door of this run, the token of the other.
        mixed = (*tickets[0][:2], *tickets[1][2:])
        with pytest.raises(CarrierError, match="is lost: no line to"):
            far.get_promised("a", mixed, SIZES, deadline_s(0.0))


@pytest.mark.parametrize("ticket", [None, 3, (), ("127.0.0.1", "x", "secret", "a")])
def test_what_is_no_ticket_is_refused_without_showing_it(ends, ticket):
    with pytest.raises(CarrierError, match="ticket must be host") as error:
        ends[1].get(ticket, SIZES, deadline_s())
    assert "secret" not in str(error.value)


def test_a_promise_never_kept_is_given_up_at_the_deadline(ends, monkeypatch):
    near, far = ends
    monkeypatch.setattr(lines, "WORD_S", 0.02)
    ticket = near.promise("a")
    start_s = Clock().now_s()
    with pytest.raises(CarrierError, match=r"did not come in time|timed out"):
        far.get_promised("a", ticket, SIZES, deadline_s(0.3))
    assert Clock().now_s() - start_s < SOON_S


def test_a_sender_that_falls_silent_is_given_up_before_the_deadline(ends, monkeypatch):
    near, far = ends
    monkeypatch.setattr(lines, "SILENT_S", 0.2)
    with pytest.raises(CarrierError, match="is lost: timed out"):
        far.get_promised("a", near.promise("a"), SIZES, deadline_s(600.0))


def test_a_line_that_was_closed_while_idle_is_dialled_anew(ends):
    near, far = ends
    ticket = near.put("a", pieces(1), 0.0)
    far.get(ticket, SIZES, deadline_s())
    [[(_, line)]] = far._idle.values()
    line.close()
    assert (far.get(ticket, SIZES, deadline_s())[2] == 1).all()
    [[(_, another)]] = far._idle.values()
    assert another is not line
    # Used for the next, and left when it has been idle for long.
    far.get(ticket, SIZES, deadline_s())
    assert [one for _, one in next(iter(far._idle.values()))] == [another]
    far._leave(Clock().now_s())
    assert not far._idle
    with pytest.raises(LineClosedError):
        another.send(b"x")


def test_a_promise_that_can_not_be_kept_goes_over_to_the_next_carrier(ends, caplog):
    near, far = ends
    memory, params = two.Memory(), two.learner_tree()
    sender = two.sender(near, memory, **wanted_by(params))

    class Full(Arena):
        def lease(self, num_bytes):
            raise OSError(f"no {num_bytes} bytes")

    near._arena = Full()
    receiver = two.receiver(params, far, memory)
    with caplog.at_level(logging.WARNING):
        offer = sender.publish(params, 0)
        with pytest.raises(CarrierError, match="could not be written"):
            receiver.receive(offer)
        got = receiver.receive(offer, again=sender.again)
    two.assert_same_bits(got, params)
    assert "promise could not be kept: no memory for" in caplog.text


def test_what_a_writer_dies_of_comes_out_with_the_next_version(ends, monkeypatch):
    near, far = ends
    params = two.learner_tree()
    sender = two.sender(near, **wanted_by(params))

    def dies(box):
        raise ZeroDivisionError(box.leaf)

    monkeypatch.setattr(snapshot.Box, "words", property(dies))
    offer = sender.publish(params, 0)
    with pytest.raises(CarrierError, match="could not be written"):
        two.receiver(params, far).receive(offer)
    with pytest.raises(ZeroDivisionError):
        sender.publish(params, 1)


def test_differences_are_made_before_they_are_offered(ends):
    near, far = ends
    params = two.learner_tree()
    small = jax.tree.map(lambda x: x.at[0].add(1.0), params)
    sender = two.sender(near, encoding="delta", **wanted_by(params))
    receiver = two.receiver(params, far, keep_base=True)
    receiver.receive(sender.publish(params, 0))
    offer = sender.publish(small, 1)
    shards = [s for x in manifests.from_json(offer.manifest).leaves for s in x.shards]
    assert all(shard.checksum for shard in shards)
    assert any(shard.base for shard in shards)
    two.assert_same_bits(receiver.receive(offer), small)


def test_no_difference_goes_with_a_version_that_was_promised(ends):
    near, far = ends
    params = two.learner_tree()
    receiver = two.receiver(params, far, keep_base=True)
    receiver.receive(two.sender(near, **wanted_by(params)).publish(params, 0))
    other = two.sender(near, encoding="delta", **wanted_by(params))
    other.publish(params, 0)
    small = jax.tree.map(lambda x: x.at[0].add(1.0), params)
    with pytest.raises(BaseVersionError, match="from version 0"):
        receiver.receive(other.publish(small, 1))


@pytest.mark.parametrize("fields", [{"content": "0"}, {"base": "0"}])
def test_a_manifest_that_promises_a_difference_is_refused(ends, fields):
    params = two.learner_tree()
    offer = two.sender(ends[0]).publish(params, 0)

    def spoilt(leaf):
        shards = tuple(dataclasses.replace(s, **fields) for s in leaf.shards)
        return dataclasses.replace(leaf, shards=shards)

    text = two.with_leaves(manifests.from_json(offer.manifest), spoilt).to_json()
    with pytest.raises(MismatchError, match="must be sent whole"):
        manifests.from_json(text)


def test_a_carrier_that_makes_no_promises_is_not_believed_without_checksums(ends):
    params, memory = two.learner_tree(), two.Memory()
    offer = two.sender(ends[0]).publish(params, 0)
    tickets = dict.fromkeys(offer.tickets, ("memory", "a"))
    with pytest.raises(CarrierError, match="memory must have checksums for"):
        two.receiver(params, memory).receive(
            dataclasses.replace(offer, tickets=tickets)
        )
