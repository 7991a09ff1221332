import os
import subprocess
import sys

import pytest

from jigsaw_jax import config
from jigsaw_jax.runtime import allocator

PROGRAM = """
import os, sys
from jigsaw_jax.runtime.allocator import restart_with_huge_pages
print(os.getpid(), os.environ.get("GLIBC_TUNABLES"), sys.argv[1:])
restart_with_huge_pages()
print("on")
"""

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="glibc alone has the option"
)


def lines(chosen):
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    if chosen:
        environment["GLIBC_TUNABLES"] = chosen
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, "a b", "--c"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.splitlines()


@pytest.mark.parametrize(
    ("chosen", "kept"), [(None, ""), ("glibc.malloc.arena_max=2", None)]
)
def test_a_process_starts_once_more_with_the_option_and_its_arguments(chosen, kept):
    before, after, end = lines(chosen)
    process, *_ = before.split()
    kept = f"{chosen}:" if kept is None else kept
    assert after == f"{process} {kept}glibc.malloc.hugetlb=1 ['a b', '--c']"
    assert end == "on"


def test_a_choice_of_the_users_stands():
    (only, end) = lines("glibc.malloc.hugetlb=0")
    assert only.endswith("glibc.malloc.hugetlb=0 ['a b', '--c']")
    assert end == "on"


TOUCH = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
# More than the heap of a thread holds.
size = 96 << 20
def touch():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = libc.malloc(size)
        ctypes.memset(block, 1, size)
        libc.free(block)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
KEEPING = """
from jigsaw_jax.runtime.allocator import keep_freed_memory
if {keeps}:
    assert keep_freed_memory()
touch()
"""


def test_a_second_large_block_takes_the_pages_of_the_first():
    def faults(keeps):
        program = TOUCH + KEEPING.format(keeps=keeps)
        ran = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        return int(ran.stdout)

    assert faults(keeps=True) < faults(keeps=False) / 4


HOLES = """
import ctypes, pathlib
from jigsaw_jax.runtime.allocator import give_back_freed, keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
assert keep_freed_memory()
size = 1 << 20
blocks = []
for _ in range(64):
    # A small block behind each keeps the heap from shrinking.
    blocks.append(libc.malloc(size))
    ctypes.memset(blocks[-1], 1, size)
    libc.malloc(5000)
for block in blocks:
    libc.free(block)
def resident():
    fields = pathlib.Path("/proc/self/status").read_text()
    return int(fields.partition("RssAnon:")[2].split()[0]) / 1024
before = resident()
assert give_back_freed()
print(before - resident())
"""


def test_freed_memory_between_blocks_that_stay_is_given_back():
    program = [sys.executable, "-c", HOLES]
    ran = subprocess.run(program, capture_output=True, text=True, check=True)
    # All but a page at either end of each MB.
    assert float(ran.stdout) > 63


THREADS = """
import ctypes, threading
from jigsaw_jax.runtime.allocator import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
all_run = threading.Barrier(2)
def allocate():
    libc.malloc(5000)
    all_run.wait()
threads = [threading.Thread(target=allocate) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert keep_freed_memory()
libc.fdopen.restype = ctypes.c_void_p
output = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, output)
libc.fclose(output)
"""


def test_threads_that_run_before_ours_share_the_heap_of_a_small_run(monkeypatch):
    monkeypatch.delenv(allocator.VARIABLE, raising=False)
    small = config.load(["configs/bench/overlap.gin"], []).train

    def heaps(environment):
        program = [sys.executable, "-c", THREADS]
        environment = {**os.environ, **environment}
        ran = subprocess.run(
            program, env=environment, capture_output=True, text=True, check=True
        )
        return ran.stdout.count("<heap")

    monkeypatch.delenv(allocator.ARENAS, raising=False)
    assert heaps({}) > 1
    assert heaps(allocator.environment(small)) == 1
    # What the function sets is taken back with the rest.
    monkeypatch.setenv(allocator.ARENAS, "")
    monkeypatch.delenv(allocator.ARENAS)
    allocator.share_heap_where_small(small)
    assert heaps({}) == 1


IN_A_THREAD = """
import threading
thread = threading.Thread(target=touch)
thread.start()
thread.join()
"""


def test_a_worker_of_a_small_run_keeps_freed_memory_in_every_thread(monkeypatch):
    monkeypatch.delenv(allocator.VARIABLE, raising=False)
    small = config.load(["configs/bench/overlap.gin"], []).train

    def faults(environment):
        ran = subprocess.run(
            [sys.executable, "-c", TOUCH + IN_A_THREAD],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return int(ran.stdout)

    assert faults(allocator.environment(small)) < faults({}) / 4


def test_a_worker_starts_with_the_options_that_the_user_has_not_chosen(monkeypatch):
    small = config.load(["configs/bench/overlap.gin"], []).train
    monkeypatch.setenv(allocator.VARIABLE, "glibc.malloc.arena_max=3")
    assert allocator.environment(small)[allocator.VARIABLE].split(":") == [
        "glibc.malloc.arena_max=3",
        "glibc.malloc.hugetlb=1",
        "glibc.malloc.mmap_max=0",
        f"glibc.malloc.trim_threshold={2**62}",
    ]
    large = config.load(["configs/sim/qwen3_1p7b_v5e.gin"], []).train
    monkeypatch.delenv(allocator.VARIABLE)
    assert allocator.environment(large) == {
        allocator.VARIABLE: "glibc.malloc.hugetlb=1"
    }
