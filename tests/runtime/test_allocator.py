import resource
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource
from jigsaw_jax.runtime.allocator import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
if {keeps}:
    assert keep_freed_memory()
size = 64 << 20
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(size)
    ctypes.memset(block, 1, size)
    libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone has it")
def test_a_second_large_block_takes_the_pages_of_the_first():
    def faults(keeps):
        program = PROGRAM.format(keeps=keeps)
        ran = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        return int(ran.stdout)

    pages = (64 << 20) // resource.getpagesize()
    assert faults(keeps=True) < pages / 20
    assert faults(keeps=False) > pages / 20
