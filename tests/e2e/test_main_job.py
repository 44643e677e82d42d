"""The main example on four real nodes: what `ttj render` writes, applied with kubectl, trains 16 ranks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.testbed.images.build import RUNTIME, RUNTIME_CPU
from tests.testbed.node.nodes import cluster
from tests.testbed.pools import cpu_pool, tpu_pool

from torchtpu_operator.contract import names
from torchtpu_operator.contract.exits import Cause
from torchtpu_operator.contract.termination import Termination
from torchtpu_operator.tpu.slices import slice_shape

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/ddp-v6e-4x4"
V6E = slice_shape("v6e", "4x4")
RUN_S = 300


@pytest.fixture(scope="module")
def plane():
    with cluster([*cpu_pool(), *tpu_pool("v6e", V6E)], [RUNTIME, RUNTIME_CPU]) as running:
        yield running


@pytest.fixture
def namespace(plane):
    """Enforces the `baseline` Pod Security Standard, as careful clusters do."""
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    plane.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "train", "labels": labels}}])
    plane.processes.wait(lambda: plane.get("serviceaccounts", "-n", "train"), "the namespace's service account")
    yield "train"
    plane.kubectl("delete", "namespace", "train", "--timeout=50s")
    assert plane.get("pods", "--all-namespaces") == []


@pytest.fixture
def job(tmp_path, namespace):
    """The example's job with what a test bed needs: device CPU, an image that is there, the program beside it."""
    document = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    document["metadata"] |= {
        "namespace": namespace,
        "annotations": {names.ANNOTATION_KEEP_TPU_SCHEDULING: "true"},
    }
    document["spec"]["runtime"] |= {
        "device": "CPU",
        "image": RUNTIME_CPU.name,
        "files": {"train.py": (EXAMPLE / "train.py").read_text()},
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.timeout(RUN_S + 120, func_only=True)  # setting up may build everything
def test_it_trains_on_four_hosts(plane, namespace, job):
    rendered = subprocess.run(
        [sys.executable, "-m", "torchtpu_operator.cli", "render", "-f", job],
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator")}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    plane.kubectl("apply", "-f", "-", stdin=rendered)
    placed = {}

    def ended():
        for pod in plane.get("pods", "-n", namespace, "-l", "ray.io/node-type"):
            placed[pod["metadata"]["name"]] = pod
        status = plane.get("rayjob", "ddp-v6e-4x4-1", "-n", namespace).get("status", {})
        return status.get("jobDeploymentStatus") in ("Complete", "Failed") and status

    plane.processes.wait(lambda: bool(ended()), "the job's end", "kuberay", timeout_s=RUN_S, every_s=2)
    status = ended()
    submitter, log = submitter_of(plane, namespace)
    assert (status["jobStatus"], status["jobDeploymentStatus"]) == ("SUCCEEDED", "Complete"), log

    workers = [pod for pod in placed.values() if pod["metadata"]["labels"]["ray.io/node-type"] == "worker"]
    assert sorted(pod["spec"]["nodeName"] for pod in workers) == [f"gke-v6e-{i}" for i in range(4)]
    assert all(pod["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"] == "4" for pod in workers)
    (head,) = [pod for pod in placed.values() if pod["metadata"]["labels"]["ray.io/node-type"] == "head"]
    assert head["spec"]["nodeName"] == "gke-default-pool-0"
    tokens = [v for v in head["spec"]["containers"][0]["env"] if v["name"] == "RAY_AUTH_TOKEN"]
    assert tokens[0]["valueFrom"]["secretKeyRef"]["name"] == status["rayClusterName"]

    assert "on 16 x cpu" in log
    assert float(re.findall(r"test accuracy: ([0-9.]+) %", log)[-1]) > 95
    (state,) = submitter["status"]["containerStatuses"]
    termination = Termination.from_json(state["state"]["terminated"]["message"])
    assert (termination.cause, termination.message) == (Cause.SUCCEEDED, "all 16 ranks ended with 0")
    plane.processes.wait(
        lambda: len(plane.get("pods", "-n", namespace)) == 1, "the slice's release", timeout_s=120, every_s=1
    )


def submitter_of(plane, namespace):
    """The submitter's pod, which stays when the cluster is gone, and its log."""
    (pod,) = plane.get("pods", "-n", namespace, "-l", "job-name=ddp-v6e-4x4-1")
    return pod, plane.kubectl("logs", pod["metadata"]["name"], "-n", namespace)
