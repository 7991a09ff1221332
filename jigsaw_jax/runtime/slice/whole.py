"""A learner's state between the disk of host 0 and the devices of all hosts.

    save     shards ==Ray==> host 0 puts them together -> disk
    restore  disk -> host 0 ==Ray==> each host places its devices' parts

Only host 0 touches the disk, so the others need not see it, and a checkpoint is the
same whatever number of hosts wrote it. It must fit into host 0's memory.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import ray
from ray.exceptions import RayError

from jigsaw_jax import mesh as meshes
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.slice.log import Trace
from jigsaw_jax.runtime.slice.peers import HostLostError, Peers
from jigsaw_jax.runtime.weights import snapshot
from jigsaw_jax.runtime.weights.placement import within


class Exchange:
    """What the hosts of a learner's slice hand each other, in the order of its log.

    One thread of each host calls it, with the same calls.

    Args:
      peers: of this host.

    Attributes:
      trace: of what came out so far; an answer brings it along.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._number = 0
        self.trace = Trace()

    def collect(
        self, what: str, values: Any, refs: list[Any]
    ) -> list[tuple[Any, list[Any]]] | None:
        """Answers of the other hosts, on host 0; None on them.

        Args:
          what: is handed over, for errors.
          values: this host's answer, plain.
          refs: objects that it names.

        Returns:
          Values and objects of hosts 1, 2, ...

        Raises:
          DivergedError: another host has done something else so far.
          HostLostError: one is dead.
        """
        key = self._next(what)
        if not self._peers.leads:
            self._peers.answer(key, self.trace.value, values, refs=refs)
            return None
        answers = self._peers.gather(key)
        for (theirs, _), _ in answers:
            self.trace.check(theirs, what)
        return [(of_host, named) for (_, of_host), named in answers]

    def gather(self, what: str, tree: Any) -> Any:
        """The whole arrays of a tree on host 0; None on the others.

        Args:
          what: is handed over, for errors.
          tree: of arrays that lie over all hosts.

        Returns:
          The same tree of host arrays; `tree` itself where there is one host.

        Raises:
          HostLostError: a host is dead.
        """
        if self._peers.is_alone:
            return tree
        taken = snapshot.take(tree, 0, as_bf16=False)
        if not self._peers.leads:
            places = [[box.leaf, box.index] for box in taken.boxes]
            self.collect(what, places, [ray.put(box.data_u8) for box in taken.boxes])
            return None
        whole = [np.empty(x.shape, jnp.dtype(x.dtype)) for x in taken.leaves]
        for box in taken.boxes:
            _fill(whole[box.leaf], box.index, box.data_u8)
        for places, refs in self.collect(what, None, []) or []:
            for (leaf, index), data_u8 in zip(places, _fetched(refs), strict=True):
                _fill(whole[wire.read(int, leaf)], index, data_u8)
        return jax.tree.unflatten(jax.tree.structure(tree), whole)

    def spread(self, what: str, tree: Any, wanted: Any) -> Any:
        """Host 0's arrays on the devices of all hosts.

        Args:
          what: is handed over.
          tree: of host arrays, on host 0.
          wanted: shapes and shardings.

        Returns:
          The tree on the devices.

        Raises:
          ValueError: an array has not the shape that is wanted.
          HostLostError: host 0 is dead.
        """
        key = self._next(what)
        shapes, treedef = jax.tree.flatten(wanted)
        if self._peers.leads:
            arrays = [np.asarray(leaf) for leaf in treedef.flatten_up_to(tree)]
            self._peers.tell(key, refs=[ray.put(array) for array in arrays])
        else:
            _, refs = self._peers.hear(key)
            arrays = _fetched(refs)
        for array, shape in zip(arrays, shapes, strict=True):
            if (array.shape, array.dtype) != (shape.shape, shape.dtype):
                raise ValueError(f"{what} must have {shape}, got {array.shape}")
        placed = meshes.place(arrays, [shape.sharding for shape in shapes])
        return jax.tree.unflatten(treedef, placed)

    def share(self, what: str, value: Any) -> Any:
        """Host 0's plain value on every host."""
        key = self._next(what)
        if self._peers.leads:
            self._peers.tell(key, value)
            return value
        values, _ = self._peers.hear(key)
        return values[0]

    def _next(self, what: str) -> str:
        self._number += 1
        return f"{what} {self._number}"


def on_host(abstract: Any) -> Any:
    """Shapes as host arrays that take no memory, for a checkpoint to be read like."""
    return jax.tree.map(
        lambda x: np.broadcast_to(np.zeros((), jnp.dtype(x.dtype)), x.shape), abstract
    )


def _fill(whole: np.ndarray, index: Any, data_u8: np.ndarray) -> None:
    place = within(index, tuple((0, size) for size in whole.shape))
    whole[place] = data_u8.view(whole.dtype).reshape(whole[place].shape)


def _fetched(refs: list[Any]) -> list[np.ndarray]:
    try:
        return ray.get(refs)
    except RayError as error:
        raise HostLostError(str(error).strip().split("\n")[0]) from error
