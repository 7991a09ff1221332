"""pass@k without bias, from n completions of which c pass."""

import math


def pass_at_k(n: int, c: int, k: int) -> float:
    """The probability that at least one of k completions passes.

    Drawing k of the n without replacement fails entirely with probability
    C(n - c, k) / C(n, k). Source: Chen et al. 2021 (arXiv:2107.03374), section 2.1.

    Args:
      n: completions sampled; at least k.
      c: those that passed.
      k: completions that a user would look at.

    Returns:
      1 - C(n - c, k) / C(n, k).

    Raises:
      ValueError: if the three do not fit each other.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k!r}")
    if n < k:
        raise ValueError(f"n must be at least k = {k}, got {n!r}; sample more")
    if not 0 <= c <= n:
        raise ValueError(f"c must be between 0 and n = {n}, got {c!r}")
    return 1 - math.comb(n - c, k) / math.comb(n, k)
