"""How often the interpreter looks for garbage that reference counts don't find."""

import contextlib
import gc
from collections.abc import Iterator

# Containers that are made and not freed until it looks again; 700 by default. An update
# of 500 groups makes half as many before any of them is freed.
YOUNG_MAX = 200_000
# So many are looked at in some 5 ms.
TIDY_MAX = 20_000


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
    """Look at what was made since the last look, where that is little.

    A run that has much under way looks by itself, if seldom; here it would stand still
    for 50 ms.
    """
    if gc.get_count()[0] <= TIDY_MAX:
        gc.collect(1)
