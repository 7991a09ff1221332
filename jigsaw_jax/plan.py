"""`python -m jigsaw_jax.plan --gin FILE`: compile a run for TPUs that are not here."""

import argparse
import json
import os
import pathlib
import sys
from typing import Any

from jigsaw_jax import config

# libtpu would ask a metadata server for the TPU that this machine doesn't have.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "JAX_PLATFORMS": "cpu",
}


def main(argv: list[str] | None = None) -> int:
    """Compile the run's programs, print the table and write the JSON.

    Args:
      argv: arguments; None takes the process's.

    Returns:
      Exit code: 0, or 2 where the configuration is refused or nothing fits.
    """
    args = _parser().parse_args(argv)
    try:
        train = config.load(args.gin, args.set).train
    except config.ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Imported here: the environment must stand before JAX does.
    from jigsaw_jax.planning import plan
    from jigsaw_jax.planning.programs import PlanError

    try:
        made = plan.make(
            train,
            sampler_topology=args.sampler_topology or train.mesh.sampler_topology,
            learner_topology=args.learner_topology or train.mesh.learner_topology,
            name=pathlib.Path(args.gin[-1]).stem,
        )
    except (PlanError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    _write(made, args.json)
    return 0


def _write(made: dict[str, Any], path: str | None) -> None:
    from rich.console import Console

    from jigsaw_jax.planning import table

    if path is not None:
        pathlib.Path(path).write_text(json.dumps(made, indent=1) + "\n")
    table.show(made, Console())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jigsaw_jax.plan", allow_abbrev=False, description=__doc__
    )
    parser.add_argument("--gin", action="append", required=True, metavar="FILE")
    parser.add_argument("--set", action="append", default=[], metavar="BINDING")
    for side in ("sampler", "learner"):
        parser.add_argument(
            f"--{side}_topology",
            metavar="SLICE",
            help=f"like v5e:2x4; default: Mesh.{side}_topology",
        )
    parser.add_argument("--json", metavar="OUT", help="also write the plan as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
