"""Serves our engine with JetStream 0.2.2 and compares it with our own loop.

    python -m tests.jetstream.conformance [--site DIR]

Installs the package without its dependencies, which would bring TensorFlow, beside
the few that its imports need. Exits 1 if any check fails.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[2]
STAND_IN = pathlib.Path(__file__).parent / "stand_in"
# seqio.vocabularies has a stand-in; regex is tiktoken's.
PACKAGES = (
    "google-jetstream==0.2.2",
    "grpcio",
    "prometheus-client",
    "regex",
    "shortuuid",
    "tiktoken",
)
# Names of the functions in `checks`, which imports what is not installed here.
CHECKS = (
    "contract",
    "interleaved",
    "disaggregated",
    "edges",
    "last_slot",
    "server",
    "mock_engine",
    "own_orchestrator",
)
TIME_LIMIT_S = 600
OUTPUT_LINES_MAX = 40


class CannotInstallError(Exception):
    """The package index is out of reach, or pip is absent."""


def install(site: pathlib.Path) -> None:
    """Puts the packages into a directory, unless an earlier call has."""
    if (site / "jetstream").is_dir():
        return
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*pip, "--target", str(site), *PACKAGES], capture_output=True, text=True
    )
    if done.returncode:
        raise CannotInstallError((done.stderr or done.stdout).strip()[-500:])


def run(check: str, site: pathlib.Path) -> str | None:
    """Runs a check in a process of its own; what went wrong, or None."""
    path = os.pathsep.join(map(str, (ROOT, STAND_IN, site)))
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    # These could ask for more than one device.
    for name in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "tests.jetstream.checks", check]
    with tempfile.TemporaryFile("w+") as output:
        try:
            done = subprocess.run(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=ROOT,
                timeout=TIME_LIMIT_S,
            )
            problem = f"exit code {done.returncode}" if done.returncode else None
        except subprocess.TimeoutExpired:
            problem = f"not done after {TIME_LIMIT_S} s"
        if problem is None:
            return None
        output.seek(0)
        lines = output.read().splitlines()[-OUTPUT_LINES_MAX:]
    return "\n    ".join([problem, *lines])


def main() -> int:
    """Prints a line a check.

    Returns:
      0 if all passed, else 1.
    """
    parser = argparse.ArgumentParser(description="JetStream serves our engine.")
    parser.add_argument(
        "--site", type=pathlib.Path, help="where the packages are kept for a next time"
    )
    site = parser.parse_args().site
    with tempfile.TemporaryDirectory() as temporary:
        try:
            install(site or pathlib.Path(temporary))
        except CannotInstallError as error:
            print(f"FAIL install: {error}")
            return 1
        print(f"pass install: {PACKAGES[0]} without its dependencies", flush=True)
        num_failed = 0
        for check in CHECKS:
            start_s = time.perf_counter()
            problem = run(check, site or pathlib.Path(temporary))
            took_s = time.perf_counter() - start_s
            num_failed += problem is not None
            verdict = f"pass {check}" if problem is None else f"FAIL {check}: {problem}"
            print(f"{verdict} ({took_s:.0f} s)", flush=True)
    print(f"{len(CHECKS) - num_failed} of {len(CHECKS)} checks passed")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
