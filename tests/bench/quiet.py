"""How quiet the machine was while a bench ran: what others took of its cores.

A core is busy with the run's own processes, with others' (or other machines', which the
kernel sees as stolen time), or idle. So what was busy and not the run's was others'.
"""

import contextlib
import json
import os
import pathlib
import threading
import time
from collections.abc import Iterator

_EVERY_S = 0.5
_PROC = pathlib.Path("/proc")


@contextlib.contextmanager
def watched(run_dir: pathlib.Path) -> Iterator[None]:
    """Leaves beside a run how many cores others took while the block ran."""
    is_over = threading.Event()
    watch = _Watch()

    def follow() -> None:
        while not is_over.wait(_EVERY_S):
            watch.look()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    path = _path(run_dir)
    earlier = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*earlier, round(watch.others(), 3)]) + "\n")


def told(run_dir: pathlib.Path) -> str:
    """What `watched` left, in a few words; nothing where it did not."""
    path = _path(run_dir)
    if not path.exists():
        return ""
    cores = ", ".join(f"{share:.2f}" for share in json.loads(path.read_text()))
    return f"   others took {cores} cores"


def _path(run_dir: pathlib.Path) -> pathlib.Path:
    return run_dir.with_suffix(".others.json")


class _Watch:
    """Counts ticks of the machine and of this process and all below it."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._busy = _busy()
        # Ticks of each process when it was first and last seen.
        self._first = _ticks(os.getpid())
        self._last = dict(self._first)

    def look(self) -> None:
        """See what has run since; what ends between two looks counts as others'."""
        for pid, ticks in _ticks(os.getpid()).items():
            self._first.setdefault(pid, 0)
            self._last[pid] = ticks

    def others(self) -> float:
        """Cores that others took, in the mean."""
        self.look()
        own = sum(ticks - self._first[pid] for pid, ticks in self._last.items())
        spent_s = time.monotonic() - self._start_s
        ticks = _busy() - self._busy - own
        return max(ticks / os.sysconf("SC_CLK_TCK") / max(spent_s, 1e-9), 0.0)


def _busy() -> int:
    """Ticks in which some core was not idle."""
    user, nice, system, _, _, irq, soft, steal = map(
        int, (_PROC / "stat").read_text().split()[1:9]
    )
    return user + nice + system + irq + soft + steal


def _ticks(root: int) -> dict[int, int]:
    """Ticks of a process and of all below it, by pid."""
    parents, ticks = {}, {}
    for path in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in parentheses, may hold spaces.
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    own, found = {root}, set()
    while own:
        found |= own
        own = {pid for pid, parent in parents.items() if parent in own} - found
    return {pid: ticks[pid] for pid in found if pid in ticks}
