"""`python -m jigsaw_jax.main --gin FILE`: train, or show what would be trained."""

from jigsaw_jax.runtime import signals

if __name__ == "__main__":
    # What follows takes its time, and a traceback of an import tells nobody anything.
    signals.leave_at_once()

import argparse
import functools
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from jigsaw_jax import config
from jigsaw_jax.config import places
from jigsaw_jax.runtime.allocator import keep_freed_where_small, restart_with_huge_pages
from jigsaw_jax.settings import Train, sizes


def main(argv: list[str] | None = None) -> int:
    """Check the configuration, then train in this process, or in many.

    Args:
      argv: arguments; None takes the process's, which may then start anew once.

    Returns:
      Exit code: 0, 1 where the run can't go on, 2 where it is refused; 130 (Ctrl-C) or
      143 (SIGTERM) where it is stopped while it starts or when it has trained.
    """
    args = _parser().parse_args(argv)
    run_dir = pathlib.Path(args.run_dir or f"runs/{pathlib.Path(args.gin[-1]).stem}")
    resume = args.resume == "auto"
    try:
        loaded = config.load(args.gin, args.set)
        places.check_files(loaded.train)
        if args.dry_run:
            sys.stdout.write(f"{loaded.operative}\n{summary(loaded.train)}\n")
            return _preview(loaded.train)
        places.check_run_dir(run_dir, loaded.train, resume=resume)
        places.check_isolation(loaded.train.reward)
    except config.ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if argv is None:
        restart_with_huge_pages()
        keep_freed_where_small(loaded.train)
    try:
        if args.cluster is not None:
            return _train_on_cluster(loaded, run_dir, args.cluster, resume=resume)
        return _train(loaded, run_dir, resume=resume)
    except signals.SignalledError as error:
        # Between its first and its last update, a run takes signals itself.
        sys.stderr.write(signals.STOPPED)
        return error.code


def summary(train: Train) -> str:
    """Parameters, memory and shapes of a run, as comment lines.

    Args:
      train: the run.

    Returns:
      Lines that start with "#", so that they can stand below the configuration.
    """
    sampler, pipeline = train.sampler, train.pipeline
    memory = sizes.memory_bytes(train)
    shapes = ", ".join(f"{rows} x {tokens}" for rows, tokens in sizes.row_shapes(train))
    lines = [
        f"parameters: {sizes.num_params(train.decoder):,}",
        *_adapters(train),
        f"devices: {train.mesh.num_devices}",
        f"memory without activations: {sum(memory.values()) / 1e6:,.1f} MB",
        *(f"  {name}: {size / 1e6:,.1f} MB" for name, size in memory.items()),
        f"prompt buckets: {', '.join(map(str, sampler.prompt_buckets))} tokens",
        f"decode: {sampler.slots} slots, cache of {sampler.length_max} tokens",
        f"learner rows x tokens: {shapes}",
        f"round: {pipeline.groups_per_round} groups of {pipeline.samples_per_group} "
        f"samples, {pipeline.groups_per_round // pipeline.groups_per_update} updates",
    ]
    return "\n".join(f"# {line}" for line in lines)


def _adapters(train: Train) -> list[str]:
    count = sizes.num_adapter_params(train.decoder)
    return [f"adapters, which alone train: {count:,}"] if count else []


def _preview(train: Train) -> int:
    """Say what the files hold; a run would refuse what is refused here."""
    # Imported here: it takes a second, which a refused configuration should not cost.
    from jigsaw_jax.runtime.inputs import RefusedError, preview

    try:
        lines = preview(train)
    except RefusedError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.writelines(f"# {line}\n" for line in lines)
    return 0


def _train(loaded: config.Loaded, run_dir: pathlib.Path, *, resume: bool) -> int:
    # Imported here, so that a refused configuration costs no seconds.
    from jigsaw_jax.runtime.devices import prepare_devices

    try:
        prepare_devices(loaded.train.mesh)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    from jigsaw_jax.runtime.local import LocalRuntime

    runtime = functools.partial(LocalRuntime, loaded.train)
    return _run(runtime, run_dir=run_dir, resume=resume, operative=loaded.operative)


def _train_on_cluster(
    loaded: config.Loaded, run_dir: pathlib.Path, address: str, *, resume: bool
) -> int:
    # This process computes nothing, and must not take a chip from a worker.
    from jigsaw_jax.runtime.cluster.shell import ClusterRuntime

    runtime = functools.partial(ClusterRuntime, loaded.train, address)
    return _run(runtime, run_dir=run_dir, resume=resume, operative=loaded.operative)


def _run(runtime: Callable[..., Any], **arguments: Any) -> int:
    from jigsaw_jax.runtime.cluster.head import ClusterError
    from jigsaw_jax.runtime.crew import ClusterLostError
    from jigsaw_jax.runtime.inputs import RefusedError
    from jigsaw_jax.store.files import StoreError

    try:
        with signals.interrupting():
            return runtime(**arguments).run()
    except (RefusedError, ClusterError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (StoreError, ClusterLostError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jigsaw_jax.main", allow_abbrev=False, description=__doc__
    )
    parser.add_argument(
        "--gin",
        action="append",
        required=True,
        metavar="FILE",
        help="a gin file; repeat it for more, later ones win",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="BINDING",
        help="for example 'Train.updates = 3'; wins over files",
    )
    parser.add_argument(
        "--run_dir", metavar="DIR", help="default: runs/ and the last file's name"
    )
    parser.add_argument(
        "--resume",
        choices=("auto", "never"),
        default="auto",
        help="auto: go on from the last checkpoint; never: the directory must be empty",
    )
    parser.add_argument(
        "--cluster",
        metavar="WHERE",
        help="a process for each worker: local:N starts N here, a learner and samplers;"
        " auto or an address joins a Ray cluster (docs/cluster.md)",
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="print the configuration, parameters, memory and shapes, and stop",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
