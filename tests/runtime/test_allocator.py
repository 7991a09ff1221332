import os
import subprocess
import sys

import pytest

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
