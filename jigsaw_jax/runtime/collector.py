"""How often the interpreter looks for garbage that reference counts don't find."""

import contextlib
import gc
from collections.abc import Iterator

# Containers that are made and not freed until it looks by itself; 700 by default. To
# look at so many takes half a second, so `tidy` is to be called before.
YOUNG_MAX = 1_000_000
# So many are looked at in some 2 ms.
TIDY_MAX = 5_000


@contextlib.contextmanager
def seldom() -> Iterator[None]:
    """Look seldom, and never at what is there already.

    For a process that keeps many records and makes no cycles of them: each look at all
    of it takes a tenth of a second, in which nobody is answered. Not for one that holds
    arrays, since a cycle would keep their memory for longer.

    Yields:
      With the collector so; as it was before behind that.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def tidy() -> None:
    """Look at what was made since the last time, where that is little.

    Much is what is under way: records without cycles, which are freed without it. They
    are never looked at, since for 200,000 of them all would stand still for 80 ms.
    """
    if gc.get_count()[0] <= TIDY_MAX:
        gc.collect(1)
    else:
        gc.freeze()
