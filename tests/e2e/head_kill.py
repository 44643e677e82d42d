"""What KubeRay makes of faults in each submission mode: `python -m tests.e2e.head_kill [CASE ...]`, as root on Debian.

Each case is one small rendered job (v6e 1x1, device CPU) whose rank runs for RUN_S. The fault comes while it runs; the
RayJob is looked at 10, 60 and 300 s later. Writes tests/recordings/head-kill.json and the table in docs/head-kill.md.
"""

import contextlib
import copy
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.testbed.cache import TestbedError, say
from tests.testbed.controlplane import ControlPlane, KubectlError
from tests.testbed.images.build import RUNTIME, RUNTIME_CPU
from tests.testbed.node import machine
from tests.testbed.node.nodes import cluster
from tests.testbed.pools import cpu_pool

from torchtpu_operator.api.model import TorchTPUJob
from torchtpu_operator.manifests.rayjob import render

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
RECORDING, TABLE = ROOT / "tests/recordings/head-kill.json", ROOT / "docs/head-kill.md"
MODES = ("ours", "k8s-default", "http", "sidecar")
FAULTS = ("head-container", "head-pod", "submitter", "worker-pod", "frozen-dashboard", "raycluster")
TITLES = {"ours": "K8sJobMode, as rendered", "k8s-default": "K8sJobMode, KubeRay's command", "http": "HTTPMode"}
TITLES["sidecar"] = "SidecarMode"
AFTER_S = (10, 60, 300)
RUN_S, START_S, AT_ONCE, STARTING = 200, 420, 12, 2
RUNS = "/var/log/runs"  # on the node
PROGRAM = (
    "import sys, time\n"
    "def note(what): open('/runs/' + sys.argv[1], 'a').write(what + '\\n')\n"
    f"note('start'); time.sleep({RUN_S}); note('end')\n"
)
_WRITING = threading.Lock()
_STARTING = threading.Semaphore(STARTING)  # a start keeps a core busy; more of them fail their probes


def rayjob(mode: str, fault: str) -> Json:
    """A rendered job, changed to another submission mode with KubeRay's own defaults."""
    name = f"{mode}-{fault}"
    volumes = [{"name": "runs", "hostPath": {"path": RUNS}}]
    container = {"name": "ray-worker", "volumeMounts": [{"name": "runs", "mountPath": "/runs"}]}
    requests = {"requests": {"cpu": "10m", "memory": "256Mi"}}
    document = {
        "apiVersion": "torchtpu.dev/v1alpha1",
        "kind": "TorchTPUJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "tpu": {"accelerator": "v6e", "topology": "1x1"},
            "runtime": {
                "device": "CPU",
                "image": RUNTIME_CPU.name,
                "entrypoint": ["python", "run.py", name],
                "files": {"run.py": PROGRAM},
            },
            "head": {"resources": requests},
            "worker": {
                "resources": requests,
                "template": {"spec": {"volumes": volumes, "containers": [container]}},
            },
        },
    }
    (made,) = render(TorchTPUJob.model_validate(document))
    return made if mode == "ours" else _as_kuberay_does(copy.deepcopy(made), mode)


def _as_kuberay_does(made: Json, mode: str) -> Json:
    spec, groups = made["spec"], made["spec"]["rayClusterSpec"]
    made["metadata"].pop("annotations")
    spec.pop("submitterConfig")
    for group in (groups["headGroupSpec"], *groups["workerGroupSpecs"]):
        group["template"]["spec"].pop("restartPolicy")
    if mode == "k8s-default":
        (submitter,) = spec["submitterPodTemplate"]["spec"]["containers"]
        submitter.pop("command")
        return made
    spec.pop("submitterPodTemplate")
    spec["submissionMode"] = {"http": "HTTPMode", "sidecar": "SidecarMode"}[mode]
    return made


class Case:
    """One mode and one fault."""

    def __init__(self, plane: ControlPlane, mode: str, fault: str) -> None:
        self.plane, self.mode, self.fault = plane, mode, fault
        self.name = f"{mode}-{fault}-1"

    def record(self) -> Json:
        """Run it; what was seen, by seconds after the fault."""
        with _STARTING:
            self.plane.apply([rayjob(self.mode, self.fault)])
            self._wait(lambda: "start" in self._lines() and self.seen()["jobStatus"] == "RUNNING")
        before = self.seen()
        self._strike()
        struck, seen = time.monotonic(), {}
        for seconds in AFTER_S:
            time.sleep(max(0.0, struck + seconds - time.monotonic()))
            seen[str(seconds)] = self.seen()
        with contextlib.suppress(KubectlError):
            self.plane.kubectl("delete", "rayjob", self.name, "--wait=false")
        return {"mode": self.mode, "fault": self.fault, "before": before, "after": seen}

    def _wait(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not ready():
            if time.monotonic() > deadline:
                raise TestbedError(f"{self.name} did not run within {START_S} s: {self.seen()}")
            time.sleep(2)

    def _lines(self) -> list[str]:
        found = machine.folder().glob(f"*/log/runs/{self.mode}-{self.fault}")
        return [line for path in found for line in path.read_text().split()]

    def seen(self) -> Json:
        """The RayJob's own words, and what really ran."""
        status = self.plane.get("rayjob", self.name).get("status", {})
        keys = ("jobStatus", "jobDeploymentStatus", "reason", "message", "succeeded", "failed", "rayClusterName")
        said = {key: status.get(key) for key in keys}
        lines = self._lines()
        heads = self._pods("ray.io/node-type=head")
        submitters = self.plane.get("pods", "-l", f"job-name={self.name}")
        return said | {
            "starts": lines.count("start"),
            "ends": lines.count("end"),
            "heads": [{"uid": pod["metadata"]["uid"], "phase": pod["status"]["phase"]} for pod in heads],
            "submitters": [_ended(pod) for pod in submitters],
        }

    def _pods(self, selector: str) -> list[Json]:
        found: list[Json] = self.plane.get("pods", "-l", f"{selector},torchtpu.dev/job-name={self.mode}-{self.fault}")
        return found

    def _strike(self) -> None:
        (head,) = self._pods("ray.io/node-type=head")
        if self.fault == "head-container":
            os.kill(min(_processes(head, "ray-head")), signal.SIGKILL)
        elif self.fault == "frozen-dashboard":
            for pid in _processes(head, "ray-head"):
                if b"dashboard/dashboard.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGSTOP)
        elif self.fault == "submitter":
            pods = [head] if self.mode == "sidecar" else self.plane.get("pods", "-l", f"job-name={self.name}")
            os.kill(min(_processes(pods[0], "ray-job-submitter")), signal.SIGKILL)
        elif self.fault == "raycluster":
            self.plane.kubectl("delete", "raycluster", self.seen()["rayClusterName"], "--wait=false")
        else:
            pod = head if self.fault == "head-pod" else self._pods("ray.io/node-type=worker")[0]
            self.plane.kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0")


def _processes(pod: Json, container: str) -> list[int]:
    """Processes of a running container, on this machine."""
    (state,) = [c for c in pod["status"]["containerStatuses"] if c["name"] == container]
    identity = state["containerID"].split("/")[-1]
    (members,) = (Path("/sys/fs/cgroup/pids") / machine.CGROUP).rglob(f"{identity}/cgroup.procs")
    return [int(pid) for pid in members.read_text().split()]


def _ended(pod: Json) -> Json:
    states = pod["status"].get("containerStatuses") or [{}]
    ended = states[0].get("state", {}).get("terminated") or {}
    return {"phase": pod["status"]["phase"], "code": ended.get("exitCode"), "message": ended.get("message")}


def _case(plane: ControlPlane, mode: str, fault: str) -> None:
    try:
        found = Case(plane, mode, fault).record()
    except (TestbedError, KubectlError, ValueError, IndexError, OSError) as error:
        say(f"{mode} {fault}: not recorded: {error}")
        return
    with _WRITING:
        kept = json.loads(RECORDING.read_text()) if RECORDING.exists() else []
        kept = [case for case in kept if (case["mode"], case["fault"]) != (mode, fault)] + [found]
        kept.sort(key=lambda case: (MODES.index(case["mode"]), FAULTS.index(case["fault"])))
        RECORDING.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        TABLE.write_text(table(kept))
    say(f"{mode} {fault}: {_cell(found['after']['300'])}")


def _cell(seen: Json) -> str:
    parts = [seen["jobDeploymentStatus"], seen["jobStatus"], seen["reason"]]
    return " / ".join(str(part) for part in parts if part)


def table(cases: list[Json]) -> str:
    """The recording as a page."""
    lines = [
        "# Faults while a job runs, by submission mode",
        "",
        "KubeRay 1.6.0, Kubernetes 1.35, Ray 2.60, on the test bed's real nodes; written by",
        "`python -m tests.e2e.head_kill`, recorded in `tests/recordings/head-kill.json`. A cell is deployment status /",
        "job status / reason; *starts* counts how often the user's program was started within 300 s of the fault. The",
        f"program runs {RUN_S} s. *As rendered* is what `ttj render` writes; the other modes have KubeRay's defaults",
        "(back-off, restart policy, no head annotation).",
        "",
        "| Mode | Fault | After 10 s | 60 s | 300 s | Starts |",
        "|---|---|---|---|---|---|",
    ]
    for case in cases:
        after = case["after"]
        cells = [_cell(after[str(seconds)]) for seconds in AFTER_S]
        lines.append(
            f"| {TITLES[case['mode']]} | {case['fault']} | {' | '.join(cells)} | {after[str(AFTER_S[-1])]['starts']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Record the cases named (`mode/fault`), or all."""
    pairs = [(mode, fault) for fault in FAULTS for mode in MODES if (mode, fault) != ("http", "submitter")]
    wanted = sys.argv[1:]
    chosen = [pair for pair in pairs if not wanted or "/".join(pair) in wanted]
    nodes = cpu_pool(nodes=4)  # each counts this machine's cores as its own
    with cluster(nodes, [RUNTIME, RUNTIME_CPU]) as plane, ThreadPoolExecutor(AT_ONCE) as pool:
        for node in nodes:
            runs = machine.folder() / node["metadata"]["name"] / "log/runs"
            runs.mkdir()
            runs.chmod(0o777)
        for mode, fault in chosen:
            pool.submit(_case, plane, mode, fault)
    return 0


if __name__ == "__main__":
    sys.exit(main())
