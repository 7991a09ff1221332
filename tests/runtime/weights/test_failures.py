"""What is spoilt on the way is told, or replaced; what the sampler has stays whole."""

import dataclasses
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax.runtime.weights import (
    BaseVersionError,
    CarrierError,
    CorruptError,
    MismatchError,
    StaleError,
)
from jigsaw_jax.runtime.weights import manifest as manifests
from tests.runtime.weights import two_meshes as two


class Line:
    """A receiver that has version 1, and an offer of version 2 on its way."""

    def __init__(self, **options):
        self.carrier, self.spare = two.Memory(), two.Memory("spare")
        self.old, self.new = two.learner_tree(1), two.learner_tree(2)
        self.sender = two.sender(self.carrier, self.spare, **options)
        self.receiver = two.receiver(self.old, self.carrier, self.spare, keep_base=True)
        self.kept = self.receiver.receive(self.sender.publish(self.old, 1))
        self.offer = self.sender.publish(self.new, 2)
        self.pieces = self.carrier.payloads["v2.0.2.0"]

    def again(self, failed):
        return self.sender.again(failed)

    def assert_refused(self, error, match, offer=None):
        """The offer raises, and then another one arrives as if nothing had been."""
        with pytest.raises(error, match=match):
            self.receiver.receive(offer or self.offer)
        two.assert_same_bits(self.kept, self.old)
        assert self.receiver.version == 1
        got = self.receiver.receive(two.whole(self.sender, {"memory"}))
        two.assert_same_bits(got, self.new)
        two.assert_same_bits(self.kept, self.old)


@pytest.fixture
def line():
    return Line()


def changed(offer, **fields):
    whole = manifests.from_json(offer.manifest)
    text = dataclasses.replace(whole, **fields).to_json()
    return dataclasses.replace(offer, manifest=text)


def test_a_flipped_bit_is_seen_wherever_it_is(line):
    place = len(line.pieces) // 2
    line.pieces[place][-1] ^= 1
    line.assert_refused(CorruptError, f"must have checksum .* in piece {place}")


def test_two_shards_of_equal_size_exchanged_are_seen(line):
    a, b = next(
        (i, i + 1)
        for i in range(len(line.pieces) - 1)
        if len(line.pieces[i]) == len(line.pieces[i + 1])
        and not np.array_equal(line.pieces[i], line.pieces[i + 1])
    )
    line.pieces[a], line.pieces[b] = line.pieces[b], line.pieces[a]
    line.assert_refused(CorruptError, "must have checksum")


def test_bytes_that_come_right_the_second_time_need_no_other_carrier(line):
    good, line.pieces[0] = line.pieces[0], line.pieces[0] ^ 1
    get = line.carrier.get

    def heals(*args):
        got = list(get(*args))
        line.pieces[0] = good
        return got

    line.carrier.get = heals
    two.assert_same_bits(line.receiver.receive(line.offer), line.new)


def test_a_lost_shard_is_an_error(line):
    del line.pieces[3]
    line.assert_refused(CorruptError, r"must have \d+ pieces, got")


def test_a_truncated_payload_is_an_error(line):
    line.pieces[0] = line.pieces[0][:-1]
    line.assert_refused(CorruptError, r"must have \d+ bytes in piece 0")


def test_a_lost_payload_is_an_error(line):
    line.carrier.payloads.pop("v2.0.2.0")
    line.assert_refused(CarrierError, "v2.0.2.0 is lost")


def test_a_payload_without_a_ticket_or_carrier_is_an_error(line):
    line.assert_refused(
        CarrierError,
        "known carrier",
        dataclasses.replace(line.offer, tickets={"v2.0.2.0": ("pigeon", 0)}),
    )


def test_a_dead_carrier_fails_over_aloud_and_the_same_bits_arrive(line, caplog):
    line.carrier.is_dead = True
    with caplog.at_level(logging.WARNING):
        got = line.receiver.receive(line.offer, again=line.again)
    two.assert_same_bits(got, line.new)
    assert line.spare.gets
    assert "v2.0.2.0 is lost" in caplog.text


def test_a_corrupt_carrier_fails_over_too(line):
    line.pieces[0][0] ^= 128
    got = line.receiver.receive(line.offer, again=line.again)
    two.assert_same_bits(got, line.new)


def test_with_no_carrier_left_the_error_comes_out(line):
    line.carrier.is_dead = line.spare.is_dead = True
    with pytest.raises(CarrierError, match="no carrier could take version 2: spare"):
        line.receiver.receive(line.offer, again=line.again)
    line.spare.is_dead = False
    line.spare.get = line.carrier.get
    with pytest.raises(CarrierError, match="is lost"):
        line.receiver.receive(line.offer, again=line.again)
    assert line.receiver.version == 1
    two.assert_same_bits(line.kept, line.old)


def test_a_carrier_that_is_dead_when_publishing_is_passed_over_aloud(line, caplog):
    line.carrier.is_dead = True
    with caplog.at_level(logging.WARNING):
        offer = line.sender.publish(line.new, 3)
    assert "version 3 through memory: dead" in caplog.text
    assert {name for name, _ in offer.tickets.values()} == {"spare"}
    two.assert_same_bits(line.receiver.receive(offer), line.new)


def test_another_run_is_refused(line):
    line.assert_refused(StaleError, "run must be", changed(line.offer, run="other"))


@pytest.mark.parametrize("version", [0, 1])
def test_an_old_version_or_one_that_is_here_is_refused(line, version):
    line.assert_refused(
        StaleError, "version must be over 1", changed(line.offer, version=version)
    )


def test_a_wrong_dtype_of_equal_bytes_is_refused_by_name(line):
    whole = manifests.from_json(line.offer.manifest)
    first = dataclasses.replace(whole.leaves[0], dtype="int32", sent="int32")
    line.assert_refused(
        MismatchError,
        r"\['ends'\].* must be .*float32.*int32",
        changed(line.offer, leaves=(first, *whole.leaves[1:])),
    )


def test_a_type_of_transport_that_loses_bits_unasked_is_refused(line):
    whole = manifests.from_json(line.offer.manifest)
    first = dataclasses.replace(whole.leaves[0], sent="float16")
    line.assert_refused(
        MismatchError,
        "must be sent as float32",
        changed(line.offer, leaves=(first, *whole.leaves[1:])),
    )


def test_a_transposed_leaf_of_equal_bytes_is_refused_by_name(line):
    whole = manifests.from_json(line.offer.manifest)
    leaf = next(leaf for leaf in whole.leaves if len(set(leaf.shape)) == 2)
    shards = tuple(
        dataclasses.replace(shard, index=shard.index[::-1]) for shard in leaf.shards
    )
    turned = dataclasses.replace(leaf, shape=leaf.shape[::-1], shards=shards)
    leaves = tuple(turned if one is leaf else one for one in whole.leaves)
    line.assert_refused(MismatchError, "must be ", changed(line.offer, leaves=leaves))


@pytest.mark.parametrize("side", ["sampler", "learner"])
def test_a_leaf_on_one_side_only_is_named(side):
    carrier, params = two.Memory(), two.learner_tree()
    short = {"ends": params["ends"]}
    sent, wanted = (params, short) if side == "learner" else (short, params)
    receiver = two.Receiver(
        "run",
        jax.tree.map(two.abstract_of_one, wanted),
        [carrier],
        clock=two.Clock(),
    )
    with pytest.raises(MismatchError, match=r"unmatched: \[.*'layers'"):
        receiver.receive(two.sender(carrier).publish(sent, 0))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda leaf: leaf["shards"].pop(),
        lambda leaf: leaf["shards"].append(leaf["shards"][0]),
        lambda leaf: leaf["shards"][0]["index"][0].reverse(),
        lambda leaf: leaf["shards"][0]["index"].append([0, 1]),
    ],
)
def test_a_manifest_with_a_hole_or_an_overlap_is_refused(line, spoil):
    fields = json.loads(line.offer.manifest)
    spoil(next(leaf for leaf in fields["leaves"] if len(leaf["shards"]) > 1))
    offer = dataclasses.replace(line.offer, manifest=json.dumps(fields))
    line.assert_refused(MismatchError, "must cover", offer)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 2}',
        '{"format": 1, "run": 3, "version": 2, "encoding": "exact", "leaves": []}',
        '{"format": 1, "run": "", "version": -1, "encoding": "exact", "leaves": []}',
        '{"format": 1, "run": "", "version": 2, "encoding": "zip", "leaves": []}',
        '{"format": 1, "run": "", "version": 2, "encoding": "exact", "leaves": [3]}',
    ],
)
def test_what_is_no_manifest_is_refused(line, text):
    offer = dataclasses.replace(line.offer, manifest=text)
    line.assert_refused(MismatchError, "must be JSON of format 1", offer)


def test_a_shard_that_claims_other_bytes_than_its_box_has_is_refused(line):
    fields = json.loads(line.offer.manifest)
    fields["leaves"][0]["shards"][0]["num_bytes"] += 4
    offer = dataclasses.replace(line.offer, manifest=json.dumps(fields))
    line.assert_refused(MismatchError, r"must have \d+ bytes at", offer)


def test_a_difference_from_weights_that_are_not_here_is_sent_whole_instead():
    line = Line(encoding="delta")
    small = jax.tree.map(lambda x: x.at[0].add(jnp.ones((), x.dtype)), line.new)
    offer = line.sender.publish(small, 3)
    assert any(
        shard.base
        for leaf in manifests.from_json(offer.manifest).leaves
        for shard in leaf.shards
    )
    # This one has version 1, and the difference is from version 2.
    with pytest.raises(BaseVersionError, match="difference from version 1"):
        line.receiver.receive(offer)
    two.assert_same_bits(line.receiver.receive(offer, again=line.again), small)
    joining = two.receiver(small, line.carrier)
    with pytest.raises(BaseVersionError, match="difference from version -1"):
        joining.receive(offer)
    two.assert_same_bits(joining.receive(two.whole(line.sender)), small)
