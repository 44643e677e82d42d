"""Whether this machine can run the job, before anything starts. Imports neither Ray nor torch."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

from torchtpu_operator.contract import versions
from torchtpu_operator.contract.job import JobSpec
from torchtpu_operator.tpu.ranks import world_size
from torchtpu_operator.tpu.slices import slice_shape

MAX_RANKS = 64
# Proportional set sizes measured with Ray 2.60.0 and torch 2.13.0: head with driver and submitter; a host's Ray node
# and agent; a rank that trains a tiny model with gloo. Models and data come on top.
HEAD_BYTES, HOST_BYTES, RANK_BYTES = 0.8 * 2**30, 0.3 * 2**30, 0.45 * 2**30
DISK_BYTES = 512 * 2**20
CONTAINER_COMMAND = (
    'docker run --rm -it -v "$PWD":/work -w /work python:3.12 '
    "sh -c 'pip install \"torchtpu-operator[local]\" && ttj run -f job.yaml'"
)
INSTALL = "pip install 'torchtpu-operator[local]'"


class EnvironmentProblem(Exception):
    """This machine cannot run it; the message says why and what to do."""


def check(spec: JobSpec, output: Path) -> list[str]:
    """Raises EnvironmentProblem. Returns remarks: what it needs, and warnings."""
    _platform()
    shape = slice_shape(spec.accelerator, spec.topology, spec.chips_per_host)
    hosts, ranks = shape.hosts * spec.slices, world_size(shape, spec.slices)
    if ranks > MAX_RANKS:
        raise EnvironmentProblem(
            f"{ranks} ranks are more than one machine runs well (at most {MAX_RANKS}); "
            "choose a smaller topology for the trial, or see the rank table with --dry-run"
        )
    _packages()  # after what no package would change
    remarks = _memory(hosts, ranks)
    free = shutil.disk_usage(output).free
    if free < DISK_BYTES:
        raise EnvironmentProblem(
            f"{output} has {_mib(free)} free for logs, {_mib(DISK_BYTES)} are needed; choose --output"
        )
    return remarks


def needed_bytes(hosts: int, ranks: int) -> float:
    """Memory that Ray and bare ranks take."""
    return HEAD_BYTES + hosts * HOST_BYTES + ranks * RANK_BYTES


def _platform() -> None:
    if sys.platform != "linux":
        raise EnvironmentProblem(
            f"`ttj run` needs Linux (or WSL2): the simulated hosts use loopback addresses and process rules that "
            f"{platform.system()} does not have. In a container it works: {CONTAINER_COMMAND}"
        )


def _packages() -> None:
    found = {}
    for name in ("ray", "torch"):
        if importlib.util.find_spec(name) is None:
            raise EnvironmentProblem(f"{name} is not installed for {sys.executable}; install it: {INSTALL}")
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    ray = found["ray"].split(".")
    if not all(part.isdigit() for part in ray[:2]) or tuple(map(int, ray[:2])) < versions.RAY_MINIMUM:
        wanted = ".".join(map(str, versions.RAY_MINIMUM))
        raise EnvironmentProblem(f"Ray {found['ray']} is installed, {wanted} or newer is needed: {INSTALL}")
    if importlib.util.find_spec("aiohttp") is None:
        raise EnvironmentProblem(f"Ray is installed without its dashboard, which takes the job: {INSTALL}")


def _memory(hosts: int, ranks: int) -> list[str]:
    needed, available = needed_bytes(hosts, ranks), available_bytes()
    text = (
        f"memory: about {_gib(needed)} for Ray, {hosts} simulated host(s) and {ranks} rank(s), before models and data"
    )
    if available is None:
        return [text]
    if available < needed / 2:
        raise EnvironmentProblem(
            f"not enough memory: about {_gib(needed)} are needed for Ray on {hosts} hosts and {ranks} ranks, "
            f"{_gib(available)} are available; close programs or choose a smaller topology"
        )
    remarks = [f"{text}, {_gib(available)} available"]
    if available < needed:
        remarks.append("warning: that is short; the machine may swap or kill processes")
    return remarks


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> float | None:
    """What can be used without swapping, also within a container's limit; None if it cannot be told."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        available = float(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return min(available, float(limit) - float(used)) if limit != "max" else available
    except (OSError, ValueError):
        return available


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def _mib(size: float) -> str:
    return f"{size / 2**20:.0f} MiB"


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
