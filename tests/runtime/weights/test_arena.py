import gc

import jax
import numpy as np

from jigsaw_jax.runtime.weights.arena import Arena, aligned


def test_memory_is_used_again_only_when_no_view_or_array_refers_to_it():
    arena = Arena()
    first = arena.lease(1 << 20)
    start = first.ctypes.data
    view = first[4096:8192].view(np.float32).reshape(32, 32)
    view[:] = 7
    array = jax.device_put(view, jax.devices()[0])
    # Otherwise the test shows nothing: JAX on CPU takes aligned memory as it is.
    assert array.unsafe_buffer_pointer() == start + 4096
    del first, view
    gc.collect()
    second = arena.lease(1 << 20)
    second[:] = 1
    assert (np.asarray(array) == 7).all()
    del array
    gc.collect()
    assert arena.lease(1 << 20).ctypes.data == start


def test_a_block_that_is_too_small_or_mostly_waste_is_not_taken():
    arena = Arena(free_max=3)
    start = arena.lease(100_000).ctypes.data
    assert arena.lease(200_000).ctypes.data != start
    assert arena.lease(1000).ctypes.data != start
    assert arena.lease(60_000).ctypes.data == start


def test_an_empty_lease_is_none_the_less_an_array():
    assert Arena().lease(0).shape == (0,)


def test_offsets_are_rounded_up_to_what_jax_takes_as_it_is():
    assert [aligned(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]
