"""The checksum of everything that travels: XXH3, 64 bits."""

from collections.abc import Iterable

import numpy as np
import xxhash


def checksum(data_u8: np.ndarray) -> str:
    """16 hexadecimal digits of contiguous bytes; other threads run meanwhile."""
    return xxhash.xxh3_64_hexdigest(data_u8.data)


def checksum_of(bands: Iterable[np.ndarray]) -> str:
    """`checksum` of bytes that come in bands, one behind another."""
    total = xxhash.xxh3_64()
    for band_u8 in bands:
        total.update(band_u8.data)
    return total.hexdigest()
