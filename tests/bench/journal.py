"""Print what a call of the event log costs; the budget is 10 us.

Run `python -m tests.bench.journal`. The best of many batches ignores other load.
"""

import pathlib
import statistics
import tempfile
import time

from jigsaw_jax.store.journal import EventLog

BATCHES = 50
CALLS = 200


def main() -> None:
    """Write intervals as a sampler's slot does."""
    took_us = []
    with tempfile.TemporaryDirectory() as temporary:
        path = pathlib.Path(temporary) / "events.jsonl"
        log = EventLog(path, incarnation=1, at_s=0.0, unix_s=0.0)
        for _ in range(BATCHES):
            start_s = time.perf_counter()
            for index in range(CALLS):
                log.interval("slot/01", "sample", 0.0, 1.0, uid="main/1", sample=index)
            took_us.append((time.perf_counter() - start_s) / CALLS * 1e6)
        log.close()
    median_us = statistics.median(took_us)
    print(f"a call {min(took_us):.1f} us at best, {median_us:.1f} us in the median")


if __name__ == "__main__":
    main()
