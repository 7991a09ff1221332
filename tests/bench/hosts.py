"""Hosts on one machine, each with a network of its own, and all but the first with
processes and a folder of Ray that the others can't see.

    namespace NAME-0: bridge 10.77.0.1, Ray's head, the command
      veth  NAME-1: 10.77.0.2, a raylet       veth  NAME-2: 10.77.0.3, a raylet

Network namespaces joined by a bridge in the first; nothing reaches another network. A
host is cut off by taking its end of the cable down. Needs root and iproute2.
"""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence

NETWORK = "10.77.0"
PORT = 24242
ADDRESS = f"{NETWORK}.1:{PORT}"
# Nobody else reaches this network, so it needs no token; and completions stay on the
# host that sampled them, as large ones do, until the learner asks for them.
SETTINGS = ("RAY_AUTH_MODE=disabled", "RAY_max_direct_call_object_size=100")
HEAD = "exec {ray} start --block --disable-usage-stats --temp-dir {folder} {where}"
# As a service of the system would: a raylet that was declared dead ends itself.
OTHER = """
hostname {name}
mount -t tmpfs tmpfs {folder}
echo "{address} {name} localhost" > {folder}/hosts
mount --bind {folder}/hosts /etc/hosts
while true; do {ray} start --block --disable-usage-stats {where}; sleep 1; done
"""


def why_not() -> str | None:
    """What keeps this machine from having such hosts; None where nothing does."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "unshare"):
        if shutil.which(program) is None:
            return f"network namespaces need the program {program}"
    name = f"jgs{os.getpid()}-try"
    tried = _ip("netns", "add", name, check=False)
    if tried.returncode:
        return f"no network namespace can be made: {tried.stderr.strip()}"
    _ip("netns", "del", name)
    return None


class Hosts:
    """The head's host, and others.

    Args:
      num: of the others.
      log: takes what their raylets say.
      store_bytes: of each raylet's object store.

    Attributes:
      num: of the others.
    """

    def __init__(
        self, num: int, log: pathlib.Path, store_bytes: int = 100_000_000
    ) -> None:
        self.num = num
        self._store_bytes = store_bytes
        self._name = f"jgs{os.getpid()}"
        self._names = [f"{self._name}-{index}" for index in range(num + 1)]
        self._log = log.open("ab")
        self._raylets: list[subprocess.Popen] = []
        # For sockets, whose paths may have 107 bytes.
        self._folder = tempfile.mkdtemp(prefix="jgs-", dir="/tmp")

    def __enter__(self) -> "Hosts":
        sweep()
        try:
            self._wire()
            ray = str(pathlib.Path(sys.executable).with_name("ray"))
            limits = f"--num-cpus 1 --object-store-memory {self._store_bytes}"
            head = f"--head --port {PORT} --include-dashboard false"
            for index, name in enumerate(self._names):
                address = f"{NETWORK}.{index + 1}"
                where = f"--node-ip-address {address} {limits} "
                where += f"--address {ADDRESS}" if index else head
                script = (OTHER if index else HEAD).format(
                    name=name,
                    address=address,
                    ray=ray,
                    where=where,
                    folder=self._folder,
                )
                self._raylets.append(self._start(index, script))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for raylet in self._raylets:
            # With its first process, a namespace of processes ends whole.
            raylet.kill()
            raylet.wait()
        for name in self._names:
            _remove(name)
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def command(self, argv: Sequence[str]) -> list[str]:
        """A command as it runs on the head's host, and sees its Ray."""
        return ["ip", "netns", "exec", self._names[0], "env", *SETTINGS, *argv]

    def cut(self, index: int, seconds: float) -> None:
        """Cut a host off for so long."""
        port = f"port{index}"
        _ip("-n", self._names[0], "link", "set", port, "down")
        threading.Event().wait(seconds)
        _ip("-n", self._names[0], "link", "set", port, "up")

    def limit(self, gbit: float) -> None:
        """Let every host but the head's send no more than so many Gbit a second."""
        for name in self._names[1:]:
            rate = ("rate", f"{1000 * gbit:.0f}mbit", "burst", "2mb", "latency", "50ms")
            words = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *rate]
            subprocess.run(["ip", "netns", "exec", name, *words], check=True)

    def wait(self, within_s: float) -> bool:
        """Whether all have come together in this time."""
        program = (
            f"import ray; ray.init('{ADDRESS}', log_to_driver=False, "
            "logging_level='ERROR'); print(len(ray.nodes()))"
        )
        argv = self.command([sys.executable, "-c", program])
        end_s = time.monotonic() + within_s
        while time.monotonic() < end_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                done = subprocess.run(
                    argv, capture_output=True, text=True, timeout=60, check=False
                )
                if done.stdout.strip() == str(self.num + 1):
                    return True
            threading.Event().wait(1.0)
        return False

    def worker(self, pid: int) -> int:
        """A worker of the run by the pid that it knows; 0 where it is gone."""
        found = [self.pid(index, pid) for index in range(self.num + 1)]
        workers = {one for one, _, _ in processes(b"ray::Worker")}
        return next((one for one in found if one in workers), 0)

    def pid(self, index: int, pid: int) -> int | None:
        """A process of a host, as this machine numbers it."""
        for found in _pids(self._names[index]):
            if _inner_pid(found) == pid:
                return found
        return None

    def _wire(self) -> None:
        head = self._names[0]
        for name in self._names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", head, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", head, "addr", "add", f"{NETWORK}.1/24", "dev", "bridge0")
        _ip("-n", head, "link", "set", "bridge0", "up")
        for index, name in enumerate(self._names[1:], 1):
            port = f"port{index}"
            peer = ("peer", "name", "eth0", "netns", name)
            _ip("-n", head, "link", "add", port, "type", "veth", *peer)
            _ip("-n", head, "link", "set", port, "master", "bridge0", "up")
            address = f"{NETWORK}.{index + 1}/24"
            _ip("-n", name, "addr", "add", address, "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")

    def _start(self, index: int, script: str) -> subprocess.Popen:
        inside = ["ip", "netns", "exec", self._names[index], "env", *SETTINGS]
        apart = ["unshare", "--pid", "--uts", "--mount-proc", "--fork", "--kill-child"]
        argv = [*inside, *(apart if index else []), "bash", "-c", script]
        return subprocess.Popen(argv, stdout=self._log, stderr=self._log)


def sweep() -> None:
    """Remove what one that was killed has left behind."""
    for name in _ip("netns", "list", check=False).stdout.split():
        owner = re.fullmatch(r"jgs(\d+)-\w+", name)
        if owner and not pathlib.Path(f"/proc/{owner[1]}").exists():
            _remove(name)


def processes(word: bytes) -> Iterator[tuple[int, int, str]]:
    """Every process with this word in its command line: pid, parent and name."""
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word in (path / "cmdline").read_bytes():
                head, _, tail = (path / "stat").read_text().rpartition(")")
                yield int(path.name), int(tail.split()[1]), head.partition("(")[2]


def _inner_pid(pid: int) -> int | None:
    """The number of a process in its own namespace."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    inner = next(line for line in lines if line.startswith("NSpid:"))
    return int(inner.split()[-1])


def _pids(name: str) -> list[int]:
    found = _ip("netns", "pids", name, check=False).stdout
    return [int(pid) for pid in found.split()]


def _remove(name: str) -> None:
    for pid in _pids(name):
        _kill(pid)
    _ip("netns", "del", name, check=False)


def _kill(pid: int) -> None:
    subprocess.run(["kill", "-9", str(pid)], capture_output=True, check=False)


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=check)
