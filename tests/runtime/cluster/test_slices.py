"""Hosts of a Ray cluster as slices, from rows as `ray.nodes` has them."""

import pytest

from jigsaw_jax.runtime.cluster.slices import Slice, SliceError, check_slice
from jigsaw_jax.runtime.cluster.slices import slices as slices_of
from jigsaw_jax.settings import Cluster, Mesh


def slices(nodes, own):
    return [one.nodes for one in slices_of(nodes, own)]


def node(name, alive=True, labels=(), resources=()):
    return {
        "NodeID": name,
        "Alive": alive,
        "Labels": dict(labels),
        "Resources": {"CPU": 8.0, **dict(resources)},
    }


def of_slice(name, slice_name, number, hosts):
    named = {f"jigsaw_slice:{slice_name}": float(hosts), "jigsaw_host": float(number)}
    return node(name, resources=named)


def test_hosts_that_name_no_slice_are_one_each_and_this_one_is_first():
    nodes = [node("a"), node("c"), node("b"), node("d", alive=False)]
    assert slices(nodes, "c") == [("c",), ("a",), ("b",)]


def test_hosts_of_a_slice_come_as_its_tpus_count_them():
    nodes = [
        of_slice("a", "s", 2, 2),
        of_slice("b", "l", 2, 2),
        of_slice("c", "l", 1, 2),
        of_slice("d", "s", 1, 2),
    ]
    assert slices(nodes, "b") == [("c", "b"), ("d", "a")]


def test_a_slice_counts_once_it_is_whole():
    nodes = [node("h"), of_slice("a", "s", 1, 3), of_slice("b", "s", 2, 3)]
    assert slices(nodes, "h") == [("h",)]
    nodes.append(of_slice("c", "s", 3, 3))
    assert slices(nodes, "h") == [("h",), ("a", "b", "c")]


def test_a_host_that_came_back_counts_once_ray_has_seen_that_it_had_gone():
    two = [of_slice("a", "s", 1, 2), of_slice("b", "s", 2, 2)]
    assert slices([node("h"), *two, of_slice("b2", "s", 2, 2)], "h") == [("h",)]
    # This host's own is shown as it is.
    (own,) = slices_of([*two, of_slice("b2", "s", 2, 2)], "a")
    assert own == Slice(nodes=("a", "b", "b2"), num_hosts=2, is_whole=False)
    # As many as there are to be, but not these.
    three = [of_slice("a", "s", 1, 3), of_slice("b", "s", 3, 3)]
    assert slices([node("h"), *three, of_slice("b2", "s", 3, 3)], "h") == [("h",)]


def test_hosts_that_do_not_number_themselves_are_a_slice_too():
    two = [node(name, resources={"jigsaw_slice:s": 2.0}) for name in ("b", "a")]
    assert slices([node("h"), *two], "h") == [("h",), ("a", "b")]


def test_a_host_says_that_it_is_a_learner_s():
    nodes = [node("a"), node("h", resources={"jigsaw_learner": 1.0})]
    own, other = slices_of(nodes, "h")
    assert own == Slice(nodes=("h",), num_hosts=1, is_learners=True)
    assert other == Slice(nodes=("a",), num_hosts=1)


def test_ray_s_own_labels_name_slices_where_we_don_t():
    def labelled(name, number):
        labels = {"ray.io/tpu-slice-name": "s", "ray.io/tpu-worker-id": str(number)}
        return node(name, labels=labels)

    found = slices([labelled("a", 1), labelled("b", 0), node("h")], "h")
    assert found == [("h",), ("b", "a")]
    assert slices_of([labelled("a", 1)], "a") == [Slice(nodes=("a",))]
    assert slices([labelled("a", 1), labelled("a2", 1), node("h")], "h") == [("h",)]


@pytest.mark.parametrize(
    ("hosts", "cluster", "mesh", "rule"),
    [
        (2, Cluster(sampler_hosts=1), Mesh(sampler_tensor=2), "sampler_hosts must be"),
        (2, Cluster(), Mesh(sampler_tensor=3, shared=True), "multiple of 2 sampler"),
        (2, Cluster(role_switch_after=1), Mesh(sampler_tensor=2), "must be 0 with"),
    ],
)
def test_a_slice_that_does_not_fit_the_run_is_refused(hosts, cluster, mesh, rule):
    with pytest.raises(SliceError, match=rule):
        check_slice("sampler", hosts, cluster, mesh)


def test_a_slice_that_fits_is_taken_as_it_is():
    mesh = Mesh(fsdp=4, sampler_tensor=2)
    check_slice("learner", 4, Cluster(), mesh)
    check_slice("sampler", 2, Cluster(sampler_hosts=2), mesh)
