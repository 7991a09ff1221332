"""The checksum of everything that travels: XXH3, 64 bits."""

import numpy as np
import xxhash


def checksum(data_u8: np.ndarray) -> str:
    """16 hexadecimal digits of contiguous bytes; other threads run meanwhile."""
    return xxhash.xxh3_64_hexdigest(data_u8.data)
