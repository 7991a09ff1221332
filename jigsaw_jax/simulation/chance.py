"""Random numbers that belong to a name: the same draw whatever happened before it."""

import hashlib
import math
import statistics

_NORMAL = statistics.NormalDist()


def uniform(*words: object) -> float:
    """A number in (0, 1) that depends on the words alone."""
    text = "\x00".join(map(str, words))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") + 0.5) / 2**64


def normal(*words: object) -> float:
    """A standard normal number that depends on the words alone."""
    # The largest digests round to 1, where the normal has no value.
    return _NORMAL.inv_cdf(min(uniform(*words), 1 - 2**-53))


def share_below(z: float) -> float:
    """The standard normal's distribution function."""
    return _NORMAL.cdf(z)


def lognormal(median: float, sigma: float, *words: object) -> float:
    """A log-normal number; without spread, or with median 0, the median itself."""
    if not sigma or not median:
        return median
    return median * math.exp(sigma * normal(*words))


def exponential(mean: float, *words: object) -> float:
    """An exponential number."""
    return -mean * math.log(uniform(*words))
