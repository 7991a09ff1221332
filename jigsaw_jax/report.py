"""Command line: write a run's report page, or serve one that follows the run."""

import argparse
import datetime
import pathlib
import signal
import sys

from jigsaw_jax.store import page, perfetto
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.store.run_dir import RunDir
from jigsaw_jax.store.watch import Watch


def main(argv: list[str] | None = None) -> int:
    """Write report.html and print its path, or serve the live page until Ctrl-C.

    Args:
      argv: arguments, by default those of the process.

    Returns:
      The exit code: 0, or 2 where the directory holds no readable run or the address
      can't be listened on.
    """
    args = _parser().parse_args(argv)
    run = RunDir(args.run_dir)
    if args.live:
        return _serve(run, host=args.host, port=args.port)
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


def _serve(run: RunDir, *, host: str, port: int) -> int:
    if not run.path.is_dir():
        sys.stderr.write(f"run_dir must be a directory, got {run.path}\n")
        return 2
    # Imported here: a report needs no server.
    from jigsaw_jax.store.live import LiveServer

    watch = Watch(run, now_s=lambda: datetime.datetime.now(datetime.UTC).timestamp())
    try:
        server = LiveServer(watch, host=host, port=port)
    except OSError as error:
        reason = error.strerror or error
        sys.stderr.write(
            f"--host and --port must be free to listen on, got {host} and {port}: "
            f"{reason}\n"
        )
        return 2
    # A shell starts what it puts in the background with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout.write(f"following {run.path} at {server.url}\nCtrl-C ends it\n")
    sys.stdout.flush()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0


def _parser() -> argparse.ArgumentParser:
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
    parser.add_argument(
        "--live", action="store_true", help="serve a page that follows the run"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="to listen on; any but localhost needs the token that is printed",
    )
    parser.add_argument(
        "--port", type=int, default=8600, help="default: 8600; 0 takes a free one"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
