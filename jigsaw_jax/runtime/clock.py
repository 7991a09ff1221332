"""The one place that reads time; everything else is handed seconds."""

import os
import time


class Clock:
    """Seconds on a clock that never goes back, and the date for people."""

    def now_s(self) -> float:
        """Monotonic seconds; only differences mean anything."""
        return time.monotonic()

    def unix_s(self) -> float:
        """Seconds since 1970, to line processes up."""
        return time.time()  # noqa: TID251


def process_age_s() -> float:
    """Seconds since this process was started, interpreter start-up included."""
    try:
        with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
            started_ticks = int(stat.read().rpartition(")")[2].split()[19])
            ticks_per_s = os.sysconf("SC_CLK_TCK")
            return float(uptime.read().split()[0]) - started_ticks / ticks_per_s
    except OSError:
        return time.process_time()
