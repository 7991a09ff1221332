"""The dimension key and the array types of device code.

Arrays end in their dimensions: `logits_BTV`. The suffix is the logical shape.

P prompts, G completions a prompt, B sequences or slots, R packed rows of a batch,
T query positions, S key positions, V vocabulary, D model, F hidden,
N query heads, K key-value heads, Q query heads a key-value head (N = K * Q),
H head size, L layers, E entries of a group axis, C stop tokens, X one key's words,
M trained positions of a packed row, A tokens of all rows, U experts, J experts a token,
Z pages, O pages of a slot, I places of a page, W = 2 K a token's keys and values,
Y rank of an adapter.
"""

from typing import Any

import jax
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

__all__ = ["Array", "Bool", "Float", "Int", "Params", "PyTree", "UInt32"]

Params = PyTree[jax.Array] | Any
