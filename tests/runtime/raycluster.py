"""A real Ray cluster of simulated TPU hosts on loopback addresses, as KubeRay's containers would start it."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from torchtpu_operator.contract import names
from torchtpu_operator.contract.job import JobSpec
from torchtpu_operator.contract.termination import Termination
from torchtpu_operator.tpu.environment import pod_environment
from torchtpu_operator.tpu.slices import slice_shape

NETWORK = f"127.{64 + os.getpid() % 128}"  # of this test run's own
RAY = str(Path(sys.executable).with_name("ray"))

SUBMITTED = "submitted.sh"  # what the ranks of a submitted job run, in the cluster's folder


def base_environment():
    """This process's environment without what would disturb Ray or the ranks."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "TTJ_", "TPU_", "PYTHONDONTWRITE"))}
    return kept | {"RAY_USAGE_STATS_ENABLED": "0", "TPU_SKIP_MDS_QUERY": "true", "RAY_JOB_STOP_WAIT_TIME_S": "40"}


def wait_for(condition, timeout=30.0, what="condition"):
    """The condition's first true value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true in {timeout} s"
        time.sleep(0.05)
    return value


def free_port():
    """A port that is free on all addresses: Ray's GCS listens on all of them."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


@dataclass
class Result:
    """How a driver or submitter ended."""

    code: int
    output: str
    termination: Termination
    seconds: float

    @property
    def cause(self):
        return str(self.termination.cause)


@dataclass
class Cluster:
    """Head and hosts; every node is a `ray start --block` process that dies with its raylet."""

    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    port: int = field(default_factory=free_port)
    nodes: dict[str, subprocess.Popen] = field(default_factory=dict)
    drivers: list[subprocess.Popen] = field(default_factory=list)

    @property
    def head(self):
        return f"{NETWORK}.0.2"

    @property
    def environment(self):
        return base_environment() | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}

    def start_head(self):
        # A submitted driver finds its job in the head's environment, fixed here: what the ranks run is a file.
        spec = shell(
            f"exec bash {self.folder}/{SUBMITTED}",
            accelerator="v7x",
            topology="1x1x1",
            chips_per_host=1,
            stop_grace_s=20.0,
        )
        environment = {names.ENV_JOB: spec.to_json(), names.ENV_RUN_DIR: str(self.run_dir(self.head))}
        self._node(
            self.head, environment, f"--head --port={self.port} --dashboard-host={self.head} --num-cpus=0".split()
        )
        self.wait_for_nodes()

    def run_dir(self, address):
        folder = self.folder / "run" / address
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def add_slice(self, subnet, accelerator, topology, chips_per_host=None, slice_index=0):
        """Start the hosts of one slice; their addresses."""
        shape = slice_shape(accelerator, topology, chips_per_host)
        addresses = [f"{NETWORK}.{subnet}.{host + 1}" for host in range(shape.hosts)]
        for worker_id, address in enumerate(addresses):
            environment = pod_environment(shape) | {
                "TPU_NAME": f"tpu-{subnet:05d}",
                "TPU_WORKER_ID": str(worker_id),
                names.ENV_SLICE_INDEX: str(slice_index),
                names.ENV_RUN_DIR: str(self.run_dir(address)),
                names.ENV_POD_STDOUT: str(self.run_dir(address) / "stdout"),
                "USER_VARIABLE": "kept",
            }
            (self.run_dir(address) / "stdout").touch()
            resources = json.dumps({"TPU": shape.devices_per_host})
            self._node(
                address, environment, [f"--address={self.head}:{self.port}", "--num-cpus=4", f"--resources={resources}"]
            )
        return addresses

    def _node(self, address, environment, arguments):
        log = self._log(address).open("wb")
        command = [RAY, "start", "--block", f"--node-ip-address={address}", "--object-store-memory=80000000"]
        self.nodes[address] = subprocess.Popen(
            [*command, f"--temp-dir={self.folder}/{len(self.nodes)}", *arguments],  # in one, they race for socket names
            env=self.environment | environment,
            cwd=self.folder,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )

    def wait_for_nodes(self):
        """Until every node has registered with the head."""

        def there():
            assert all(node.poll() is None for node in self.nodes.values()), "a node ended"
            return all("will now block" in self._log(address).read_text() for address in self.nodes)

        wait_for(there, 120, "the cluster")

    def _log(self, address):
        return self.folder / f"{address}.log"

    def kill(self, address):
        """SIGKILL the node's raylet, as a lost machine would."""
        parent = self.nodes.pop(address)
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                parent_id = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1] if entry.name.isdigit() else ""
                program = (entry / "cmdline").read_bytes().split(b"\0")[0]
                if parent_id == str(parent.pid) and b"raylet/raylet" in program:
                    os.kill(int(entry.name), signal.SIGKILL)
        parent.wait(30)

    def stop(self):
        for node in self.nodes.values():
            node.terminate()
        for node in self.nodes.values():
            try:
                node.wait(20)
            except subprocess.TimeoutExpired:
                node.kill()

    def start_driver(self, spec, **environment):
        """A driver process as a Ray job has it, its output in a pipe."""
        run_dir = self.run_dir(self.head)
        driver = subprocess.Popen(
            [sys.executable, "-m", names.RUNTIME_MODULE, "drive"],
            env=self.environment
            | {
                "RAY_ADDRESS": f"{self.head}:{self.port}",
                names.ENV_JOB: spec.to_json(),
                names.ENV_RUN_DIR: str(run_dir),
                names.ENV_RESULT_KEY: "key",
            }
            | environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.drivers.append(driver)
        return driver

    def drive(self, spec, **environment):
        """Run a driver to its end."""
        started = time.monotonic()
        driver = self.start_driver(spec, **environment)
        return self.finish(driver, started)

    @staticmethod
    def finish(driver, started, timeout=120):
        output, _ = driver.communicate(timeout=timeout)
        last = output.rstrip().rsplit("\n", 1)[-1]
        assert last.startswith("TTJ-RESULT key {"), output
        termination = Termination.from_json(last.removeprefix("TTJ-RESULT key "))
        return Result(driver.returncode, output, termination, time.monotonic() - started)


def job(entrypoint, accelerator="v6e", topology="2x4", chips_per_host=4, **overrides):
    """A job on simulated hosts; without torch unless the entrypoint brings it."""
    times = {"startup_deadline_s": 60.0, "stop_grace_s": 3.0, "exit_deadline_s": 60.0}
    return JobSpec(
        **{
            "name": "job",
            "namespace": "ns",
            "uid": "uid",
            "attempt": 1,
            "framework": "TorchTPU",
            "device": "CPU",
            "accelerator": accelerator,
            "topology": topology,
            "chips_per_host": chips_per_host,
            "slices": 1,
            "entrypoint": tuple(entrypoint),
            **times,
            **overrides,
        }
    )


def shell(text, **overrides):
    """A job whose ranks run a shell script."""
    return job(["bash", "-c", text], **overrides)
