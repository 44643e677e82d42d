"""The bed itself: what is there, what is refused, what is counted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.testbed import build
from tests.testbed.controlplane import KubectlError, Options, control_plane

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}"}
GOLDENS = sorted((ROOT / "tests/golden").rglob("*.yaml"))


def test_versions_and_kinds(plane):
    version = json.loads(plane.kubectl("version", "-o", "json"))
    assert version["serverVersion"]["gitVersion"] == build.KUBERNETES
    minors = [int(version[side]["minor"]) for side in ("clientVersion", "serverVersion")]
    assert abs(minors[0] - minors[1]) <= 1
    kinds = plane.kubectl("api-resources", "-o", "name").split()
    assert {"rayjobs.ray.io", "rayclusters.ray.io", "rayservices.ray.io", "workloads.kueue.x-k8s.io"} <= set(kinds)


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_goldens_are_accepted(plane, namespace, path):
    rayjob = yaml.safe_load(path.read_text())
    rayjob["metadata"]["namespace"] = namespace
    rayjob["metadata"].pop("ownerReferences", None)
    plane.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(rayjob))


def test_an_unknown_field_is_refused(plane, namespace):
    rayjob = yaml.safe_load(GOLDENS[0].read_text())
    rayjob["metadata"] = {"name": "x", "namespace": namespace}
    rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["hosts"] = 4
    with pytest.raises(KubectlError, match="unknown field"):
        plane.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(rayjob))


def test_tpu_pods_get_their_toleration_as_on_gke(plane, namespace):
    amounts = {"google.com/tpu": "4"}
    container = {"name": "c", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": namespace}}
    plane.apply([pod | {"spec": {"containers": [container]}}])
    tolerations = plane.get("pod", "p", "-n", namespace)["spec"]["tolerations"]
    assert {"key": "google.com/tpu", "operator": "Exists"}.items() <= next(
        t for t in tolerations if t["key"] == "google.com/tpu"
    ).items()


def test_the_audit_log_counts_requests(plane, namespace):
    def creations():
        return [
            event
            for event in plane.audit()
            if event["verb"] == "create"
            and {"resource": "configmaps", "namespace": namespace}.items() <= event.get("objectRef", {}).items()
            and event["user"]["username"] == "admin"
        ]

    for i in range(3):
        plane.kubectl("create", "configmap", f"c{i}", "-n", namespace)
    plane.processes.wait(lambda: len(creations()) >= 3, "the audit log")
    assert len(creations()) == 3


def test_two_side_by_side_and_nothing_left(plane):
    with control_plane(Options(kuberay=False, kwok=False)) as other:
        other.kubectl("create", "namespace", "only-there")
        assert other.server != plane.server
        with pytest.raises(KubectlError, match="NotFound"):
            plane.get("namespace", "only-there")
        folder, logs = other.folder, other.processes.logs
        assert logs.exists()
    assert not folder.exists()
    assert not logs.exists()
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(folder) not in running


def test_a_killed_bed_leaves_nothing(plane):
    code = (
        "import os, signal\nfrom tests.testbed.controlplane import Options, control_plane\n"
        "with control_plane(Options(kuberay=False, kwok=False)) as plane:\n"
        "    print(plane.folder, flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == -9, done.stderr
    folder = Path(done.stdout.strip())

    def gone():
        running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        return not folder.exists() and str(folder) not in running

    plane.processes.wait(gone, "the end of what the killed bed ran")
