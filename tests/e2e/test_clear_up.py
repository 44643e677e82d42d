"""However a bed of real nodes ends, this machine is as it was; and what cannot work is refused in a sentence."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.testbed.cache import TestbedError, cache
from tests.testbed.images.build import RUNTIME
from tests.testbed.node import machine
from tests.testbed.node.nodes import cluster
from tests.testbed.pools import cpu_pool

from torchtpu_operator.runtime.processes import descendants

ROOT = Path(__file__).parents[2]
BED = """
import time
from tests.testbed.images.build import RUNTIME, RUNTIME_CPU
from tests.testbed.node.nodes import cluster
from tests.testbed.pools import cpu_pool
with cluster(cpu_pool(), [RUNTIME, RUNTIME_CPU]) as plane:
    plane.kubectl("run", "pod", "--image", RUNTIME_CPU.name, "--command", "--", "sleep", "1000")
    plane.kubectl("wait", "--for=condition=Ready", "--timeout=50s", "pod/pod")
    print(plane.processes.logs, plane.folder, flush=True)
    time.sleep(1000)
"""
OUTPUTS = (
    ["ip", "-o", "link"],
    ["ip", "route"],
    ["nft", "list", "tables"],
    ["find", "/sys/fs/cgroup", "-type", "d", "-name", "*torchtpu*"],
    ["find", "/var/lib", "/run", "/var/log", "-maxdepth", "1"],
    ["cat", *(f"/proc/sys/{name}" for name in machine._SETTINGS), "/proc/self/mounts"],
)


def state():
    """What a bed of nodes changes; beds of control planes alone may run beside it."""
    found = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in OUTPUTS]
    return [*found, running(str(cache() / "node"), "containerd", "kubelet", "coredns")]


def running(*words):
    """Processes with one of these words in their command; not those that ended and that init has yet to reap."""
    lines = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if line[0] != "Z" and any(word in line for word in words)]


@pytest.fixture
def untouched():
    """The machine's state without a bed."""
    with machine.machine():
        pass
    return state()


@pytest.fixture
def bed(untouched):
    """A process with a bed of one node, which runs a pod."""
    with subprocess.Popen(
        [sys.executable, "-c", BED],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}"},
    ) as process:
        logs, process.scratch = process.stdout.readline().split()
        yield process
        process.kill()
    shutil.rmtree(logs, ignore_errors=True)


def test_ctrl_c(bed, untouched):
    links, routes, _, cgroups, *_, processes = state()
    assert "torchtpu0" in links
    assert "10.244.1.0/24" in routes
    assert "/pids/torchtpu-testbed" in cgroups
    assert any("sandbox" in line or "shim" in line for line in processes)
    with pytest.raises(TestbedError, match="another test bed run on this machine"), machine.machine():
        pass
    bed.send_signal(signal.SIGINT)
    bed.wait(30)
    assert state() == untouched
    assert not running(bed.scratch)
    assert not os.path.exists(bed.scratch)


@pytest.mark.parametrize("keeper", ["keeper lives", "keeper killed too"])
def test_sigkill_and_the_next_start(bed, untouched, keeper):
    if keeper == "keeper killed too":
        for pid in descendants(bed.pid):
            if b"torchtpu_operator.local.keeper" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    bed.kill()
    bed.wait(30)
    with machine.machine():
        pass
    assert state() == untouched
    assert not running(bed.scratch)


def test_nobody_but_root(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(TestbedError, match="real nodes need root"), cluster(cpu_pool(), [RUNTIME]):
        pass


def test_no_debian(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(TestbedError, match=r"no apt-get\); install containerd runc"):
        machine.require_packages()


def test_apt_that_fails(monkeypatch, tmp_path):
    apt = tmp_path / "apt-get"
    apt.write_text("#!/bin/sh\necho no network >&2\nexit 100\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setitem(machine.PACKAGES, "conntrack", "no-such-program")
    with pytest.raises(TestbedError, match=r"conntrack could not be installed with apt: .* no network"):
        machine.require_packages()


@pytest.mark.parametrize("count", [0, 6])
def test_too_many_nodes_or_none(count):
    refusal = f"one to 5 real nodes fit this bed, {count} were asked for"
    with pytest.raises(TestbedError, match=refusal), cluster(cpu_pool(nodes=count), [RUNTIME]):
        pass
