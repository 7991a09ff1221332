"""Lossless differences: the bits that changed since the last version, by byte planes.

A small step changes few elements of bfloat16 weights and the low bytes of float32 ones.
So old and new are combined by exclusive or, and byte p of all elements makes plane p,
which is left out, listed, masked or sent whole, whichever is smallest:

    [form, count] a plane, little-endian uint32 | bodies of the planes
    NONE    nothing
    LIST    places uint32 x count, values uint8 x count
    MASK    one bit an element, values uint8 x count
    DENSE   values uint8 x elements
"""

import numpy as np

from jigsaw_jax.runtime.weights.errors import CorruptError

NONE, LIST, MASK, DENSE = range(4)
# Places and counts are 32 bits wide.
_ELEMENTS_MAX = 2**32 - 1


def encode(new_u8: np.ndarray, old_u8: np.ndarray, width: int) -> np.ndarray | None:
    """What turns `old` into `new`.

    Args:
      new_u8: contiguous bytes.
      old_u8: as many.
      width: bytes of an element.

    Returns:
      Bytes for `decode`; None where they would not be fewer than the new ones, or
      there are too many to count.
    """
    if len(new_u8) // width > _ELEMENTS_MAX:
        return None
    planes = np.bitwise_xor(new_u8, old_u8).reshape(-1, width)
    heads, bodies = [], []
    for plane in range(width):
        form, count, body = _packed(np.ascontiguousarray(planes[:, plane]))
        heads += [form, count]
        bodies += body
    head = np.array(heads, "<u4").view(np.uint8)
    if len(head) + sum(map(len, bodies)) >= len(new_u8):
        return None
    return np.concatenate([head, *bodies])


def decode(sent_u8: np.ndarray, num_bytes: int, width: int) -> np.ndarray:
    """Exclusive-or bytes of an encoded difference.

    Args:
      sent_u8: from `encode`.
      num_bytes: of what was encoded.
      width: bytes of an element.

    Returns:
      `num_bytes` bytes; old ^ these = new.

    Raises:
      CorruptError: the bytes do not hold such a difference.
    """
    planes = np.zeros((num_bytes // width, width), np.uint8)
    start = 8 * width
    if len(sent_u8) < start:
        raise CorruptError(f"a delta must have {start} bytes, got {len(sent_u8)!r}")
    heads = sent_u8[:start].copy().view("<u4").reshape(width, 2).tolist()
    for plane, (form, count) in enumerate(heads):
        size = _body_size(form, count, len(planes))
        body = sent_u8[start : start + size]
        if size < 0 or len(body) != size:
            raise CorruptError(f"plane {plane} of a delta must be whole, got {form!r}")
        _unpack(form, count, body, planes[:, plane])
        start += size
    if start != len(sent_u8):
        raise CorruptError(f"a delta must have {start} bytes, got {len(sent_u8)!r}")
    return planes.reshape(-1)


def _packed(plane_u8: np.ndarray) -> tuple[int, int, list[np.ndarray]]:
    count = int(np.count_nonzero(plane_u8))
    size = len(plane_u8)
    if count == 0:
        return NONE, 0, []
    sizes = {form: _body_size(form, count, size) for form in (LIST, MASK, DENSE)}
    form = min(sizes, key=sizes.__getitem__)
    if form == DENSE:
        return form, count, [plane_u8]
    is_changed = plane_u8 != 0
    values = plane_u8[is_changed]
    if form == MASK:
        return form, count, [np.packbits(is_changed), values]
    places = np.flatnonzero(is_changed).astype("<u4").view(np.uint8)
    return form, count, [places, values]


def _body_size(form: int, count: int, size: int) -> int:
    """Bytes of a plane's body; -1 where there is no such form or count."""
    if count > size:
        return -1
    bodies = {NONE: 0, LIST: 5 * count, MASK: -(-size // 8) + count, DENSE: size}
    return bodies.get(form, -1)


def _unpack(form: int, count: int, body_u8: np.ndarray, plane_u8: np.ndarray) -> None:
    if form == DENSE:
        plane_u8[:] = body_u8
    elif form == LIST:
        places = body_u8[: 4 * count].copy().view("<u4")
        if count and int(places.max()) >= len(plane_u8):
            raise CorruptError(
                f"places of a delta must be under {len(plane_u8)}, "
                f"got {int(places.max())!r}"
            )
        plane_u8[places] = body_u8[4 * count :]
    elif form == MASK:
        bits = len(body_u8) - count
        is_changed = np.unpackbits(body_u8[:bits], count=len(plane_u8)).view(bool)
        if int(np.count_nonzero(is_changed)) != count:
            raise CorruptError(f"the mask of a delta must have {count!r} bits set")
        plane_u8[is_changed] = body_u8[bits:]
