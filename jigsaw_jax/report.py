"""Command line: write a run's report page, and its events as a Perfetto trace."""

import argparse
import pathlib
import sys

from jigsaw_jax.store import page, perfetto
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.store.run_dir import RunDir


def main(argv: list[str] | None = None) -> int:
    """Write report.html and print its path.

    Args:
      argv: arguments, by default those of the process.

    Returns:
      The exit code: 0, or 2 where the directory holds no readable run.
    """
    parser = argparse.ArgumentParser(
        prog="python -m jigsaw_jax.report", description=__doc__
    )
    parser.add_argument("run_dir", type=pathlib.Path, help="directory of the run")
    parser.add_argument(
        "--perfetto",
        type=pathlib.Path,
        metavar="OUT",
        help="also write events.jsonl as a trace for ui.perfetto.dev",
    )
    args = parser.parse_args(argv)
    run = RunDir(args.run_dir)
    try:
        page.write(run)
        sys.stdout.write(f"{run.report}\n")
        if args.perfetto is not None:
            perfetto.export(run.events, args.perfetto)
            sys.stdout.write(f"{args.perfetto}\n")
    except StoreError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
