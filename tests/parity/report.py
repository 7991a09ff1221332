"""How near we are to transformers: `python -m tests.parity.report`; exit 1 if not."""

import argparse
import pathlib
import sys
import tempfile

import jax

from tests.parity import cases, compare


def main() -> int:
    """Prints a row a family; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    print(f"{'family':14} {'max logit difference':>21} {'greedy':>7}")
    failed = 0
    for name in cases.CASES:
        with tempfile.TemporaryDirectory() as folder:
            case = compare.load(name, pathlib.Path(folder))
            difference = max(compare.logit_differences(case).values())
            agreed = compare.greedy_agreement(case)
        bad = not difference < compare.LOGITS_MAX or agreed < cases.NEW_TOKENS
        failed += bad
        print(
            f"{name:14} {difference:21.1e} {agreed:4}/{cases.NEW_TOKENS}"
            f"{'  OUT OF BOUNDS' * bad}",
            flush=True,
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
