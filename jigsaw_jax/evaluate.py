"""`python -m jigsaw_jax.evaluate --run_dir D`: accuracy and pass@k of a checkpoint."""

import argparse
import pathlib
import sys

from jigsaw_jax import config
from jigsaw_jax.config import places


def main(argv: list[str] | None = None) -> int:
    """Evaluate the newest checkpoint of a run on its held-out split.

    Args:
      argv: arguments; None takes the process's.

    Returns:
      Exit code: 0, or 2 where the run or the configuration is refused.
    """
    args = _parser().parse_args(argv)
    run_dir = pathlib.Path(args.run_dir)
    saved = run_dir / "config.gin"
    if not saved.exists():
        sys.stderr.write(f"--run_dir must hold a run (config.gin), got {run_dir}\n")
        return 2
    try:
        loaded = config.load([str(saved), *args.gin], args.set)
        places.check_files(loaded.train)
        places.check_isolation(loaded.train.reward)
        if not loaded.train.data.held_out:
            raise config.ConfigError(
                "Data.held_out must be at least 1 to evaluate, got 0: the run trained "
                "on all of its problems"
            )
    except config.ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return _evaluate(loaded.train, run_dir)


def _evaluate(train: config.settings.Train, run_dir: pathlib.Path) -> int:
    # Imported here, so that a refused configuration costs no seconds.
    from jigsaw_jax.runtime.devices import prepare_devices
    from jigsaw_jax.runtime.inputs import RefusedError
    from jigsaw_jax.runtime.offline import evaluate_checkpoint
    from jigsaw_jax.store.files import StoreError

    try:
        prepare_devices(train.mesh)
        updates, result = evaluate_checkpoint(train, run_dir)
    except (RefusedError, StoreError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    lines = [
        f"checkpoint after {updates} updates, {result.problems} held-out problems, "
        f"{train.evaluation.samples} completions each",
        f"accuracy {result.accuracy:.4f}",
        *(f"pass@{k} {value:.4f}" for k, value in result.pass_at.items()),
    ]
    if result.missing:
        lines.append(f"{result.missing} completions had no reward; counted as failed")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jigsaw_jax.evaluate")
    parser.add_argument("--run_dir", required=True, help="a run's directory")
    parser.add_argument(
        "--gin", action="append", default=[], help="more files, for example other k"
    )
    parser.add_argument(
        "--set", action="append", default=[], help="'Evaluation.samples = 8'"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
