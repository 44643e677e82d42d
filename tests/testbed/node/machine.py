"""What real nodes need of this machine, and that none of it stays: bridge, routes, kernel settings, cgroups, folders.

One bed of real nodes runs on a machine at a time. What it changed is written down in STATE, so that the next start can
clear up after one that was killed.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from tests.testbed.cache import TestbedError, cache, say

from torchtpu_operator.local.pods import ENV_MARK
from torchtpu_operator.local.processes import marked, signal_all

STATE = Path("/run/torchtpu-testbed.json")  # also the lock
BRIDGE = "torchtpu0"
ADDRESS = "10.245.0.1"  # of the bridge: gateway of the nodes, API server and DNS of the cluster
NODE_NETWORK, POD_NETWORK = "10.245.0.0/24", "10.244.0.0/16"
CGROUP = "torchtpu-testbed"
PACKAGES = {  # Debian package: a program in it
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "nftables": "nft",
    "conntrack": "conntrack",
    "iproute2": "ip",
    "debootstrap": "debootstrap",
    "buildah": "buildah",
    "busybox-static": "busybox",
}
# Settings of the whole kernel that the kubelet writes, and the one that lets nodes reach each other.
_SETTINGS = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "net/ipv4/ip_forward"),
)
_CGROUPS = Path("/sys/fs/cgroup")
_LEFT_FOLDERS = ("/var/lib/kubelet", "/var/lib/cni")  # mount points for the nodes' own folders
END_S = 30.0


def folder() -> Path:
    """Data of the running nodes."""
    return cache() / "node" / "running"


def run(*command: str | Path) -> str:
    """Output of a command. Raises TestbedError with its last words."""
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    except OSError as error:
        raise TestbedError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise TestbedError(f"{' '.join(map(str, command))} failed: {said}")
    return done.stdout


def require_packages() -> None:
    """Install what is missing. Raises TestbedError without root or Debian's apt."""
    if os.getuid():
        raise TestbedError("real nodes need root; run this as root, or use make test-cluster, which does not")
    missing = [package for package, program in PACKAGES.items() if not shutil.which(program)]
    if not missing:
        return
    names = " ".join(missing)
    if not shutil.which("apt-get"):
        raise TestbedError(f"this is no Debian (no apt-get); install {names} by other means")
    say(f"installing {names} with apt (up to 150 MB)")
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    try:
        run("apt-get", "update", "-q")
        run("apt-get", "install", "-y", "-q", "--no-install-recommends", *missing)
    except TestbedError as error:
        raise TestbedError(f"{names} could not be installed with apt: {str(error)[-500:]}") from None


@contextlib.contextmanager
def machine() -> Iterator[None]:
    """The bridge, as long as the body runs; afterwards nothing is left. Raises TestbedError if another bed runs."""
    with _locked() as state:
        _clear(state)
        _require_free_networks()
        saved = {name: Path("/proc/sys", name).read_text() for name in _SETTINGS}
        made = [path for path in _LEFT_FOLDERS if not os.path.exists(path)]
        _write(state, {"folder": str(folder()), "settings": saved, "made": made})
        try:
            for path in (*made, folder()):
                Path(path).mkdir(parents=True, exist_ok=True)
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            run("ip", "link", "add", BRIDGE, "type", "bridge")
            run("ip", "address", "add", f"{ADDRESS}/24", "dev", BRIDGE)
            run("ip", "link", "set", BRIDGE, "up")
            yield
        finally:
            _clear(state)


@contextlib.contextmanager
def _locked() -> Iterator[IO[str]]:
    with STATE.open("a+") as state:
        try:
            fcntl.flock(state, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TestbedError("real nodes of another test bed run on this machine; wait for it, or end it") from None
        yield state


def _write(state: IO[str], record: dict[str, object]) -> None:
    state.truncate(0)
    state.write(json.dumps(record))
    state.flush()


def note_scratch(scratch: Path) -> None:
    """Write down the folder whose mark the bed's processes carry."""
    (folder() / "scratch").write_text(str(scratch))


def _clear(state: IO[str]) -> None:
    """Undo what the record says. Also finds what a bed without a record left, as after a reboot."""
    state.seek(0)
    try:
        record = json.loads(state.read())
    except ValueError:
        record = {"folder": str(folder()), "settings": {}, "made": []}
    data = Path(record["folder"])
    _end_processes(data)
    remove_cgroup(CGROUP)
    if Path("/sys/class/net", BRIDGE).exists():
        run("ip", "link", "delete", BRIDGE)
    for name, value in record["settings"].items():
        Path("/proc/sys", name).write_text(value)
    shutil.rmtree(data, ignore_errors=True)
    for path in record["made"]:
        with contextlib.suppress(OSError):
            os.rmdir(path)
    state.truncate(0)


def _end_processes(data: Path) -> None:
    """What is still there of a bed: its keeper may be at it, or was killed. The nodes' mounts and networks go along."""
    try:
        scratch = Path((data / "scratch").read_text())
    except OSError:
        return
    deadline = time.monotonic() + END_S
    while left := [*marked(ENV_MARK, scratch), *_members(CGROUP)]:
        signal_all(left, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TestbedError(f"processes of an earlier bed do not end: {left}")
        time.sleep(0.1)


def _require_free_networks() -> None:
    """Raises TestbedError where this machine uses the bed's addresses for something else."""
    for network in (NODE_NETWORK, POD_NETWORK):
        if found := run("ip", "-4", "route", "show", "root", network).strip():
            raise TestbedError(f"this machine has a route in {network}, which the bed's nodes need: {found}")


def _hierarchies() -> list[Path]:
    """Where cgroups are made: one place (version 2), or one for each controller (version 1)."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if (path / "cgroup.procs").exists()]


def make_cgroup(name: str) -> None:
    """A cgroup in every hierarchy, `parent/child`; parents first."""
    for hierarchy in _hierarchies():
        for path in (hierarchy / name).relative_to(hierarchy).parents[-2::-1]:
            _make(hierarchy / path)
        _make(hierarchy / name)


def _make(path: Path) -> None:
    path.mkdir(exist_ok=True)
    control = path.parent / "cgroup.subtree_control"
    if control.exists():
        available = (path.parent / "cgroup.controllers").read_text().split()
        control.write_text(" ".join(f"+{controller}" for controller in available))
    for name in ("cpuset.cpus", "cpuset.mems"):  # version 1 starts them empty, which admits no process
        if not control.exists() and (path / name).exists():
            (path / name).write_text((path.parent / name).read_text())


def _members(name: str) -> Iterable[int]:
    for hierarchy in _hierarchies():
        for members in (hierarchy / name).rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                yield from map(int, members.read_text().split())


def remove_cgroup(name: str) -> None:
    """Remove a cgroup and those below it; their processes have ended. Raises TestbedError if one stays."""
    deadline = time.monotonic() + END_S
    while left := [place for hierarchy in _hierarchies() if (place := hierarchy / name).exists()]:
        for place in left:
            for path, _, _ in os.walk(place, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
        if time.monotonic() > deadline:
            raise TestbedError(f"the cgroup {left[0]} cannot be removed; a process is still in it")
        time.sleep(0.02)
