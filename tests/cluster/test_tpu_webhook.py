"""A rendered job on a cluster with GKE's Ray add-on: the stand-in for its webhook changes our pods, and harms none."""

import pytest
from tests.cluster.jobs import example, workers
from tests.testbed.controlplane import KubectlError, Options, control_plane
from tests.testbed.pools import cpu_pool, slice_pools

from torchtpu_operator.tpu.slices import slice_shape

NODES = [
    *cpu_pool(),
    *slice_pools("v6e", slice_shape("v6e", "4x4"), 2),
    *slice_pools("one", slice_shape("v6e", "2x2"), 1),
]


@pytest.fixture(scope="module")
def gke():
    with control_plane(Options(tpu_webhook=True)) as running:
        running.apply(NODES)
        yield running


def effective(pod):
    """Variables as the container sees them: the last of a name counts."""
    return {variable["name"]: variable for variable in pod["spec"]["containers"][0]["env"]}


def test_two_slices_keep_their_places_and_names(gke):
    gke.apply([example("ddp-v6e-4x4", "default", slices=2)])
    gke.processes.wait(lambda: len(workers(gke, "default")) == 8, "the slices' pods", "kuberay", "tpu-webhook")
    placed = workers(gke, "default")
    seen = set()
    for pod in placed:
        labels, env = pod["metadata"]["labels"], effective(pod)
        replica, host = labels["ray.io/worker-group-replica-index"], labels["ray.io/replica-host-index"]
        assert env["TPU_WORKER_ID"]["value"] == host
        assert env["TPU_NAME"]["value"] == f"tpu-{replica}"
        assert len(env["TPU_WORKER_HOSTNAMES"]["value"].split(",")) == 4
        seen.add((replica, host, pod["spec"]["nodeName"].rsplit("-", 1)[0]))
    assert len(seen) == 8
    assert len({pool for _, _, pool in seen}) == 2
    gke.kubectl("delete", "rayjob", "--all")


def test_one_host(gke):
    gke.apply([example("env-v6e-2x2", "default")])
    gke.processes.wait(lambda: len(workers(gke, "default")) == 1, "the pod", "kuberay", "tpu-webhook")
    (pod,) = workers(gke, "default")
    assert effective(pod)["TPU_WORKER_ID"]["value"] == "0"
    gke.kubectl("delete", "rayjob", "--all")


def test_it_refuses_what_the_real_one_refuses(gke):
    job = example("ddp-v6e-4x4", "default")
    cluster = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "wrong", "namespace": "default"},
        "spec": job["spec"]["rayClusterSpec"],
    }
    cluster["spec"]["workerGroupSpecs"][0]["numOfHosts"] = 2
    with pytest.raises(KubectlError, match="numOfHosts of group tpu does not fit"):
        gke.apply([cluster])
    labels = {"app.kubernetes.io/name": "kuberay", "ray.io/cluster": "c"}
    resources = {"limits": {"google.com/tpu": "4"}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "x", "resources": resources}]},
    }
    with pytest.raises(KubectlError, match=r"missing ray\.io/group"):
        gke.apply([pod])
    pod["metadata"]["labels"] = {"ray.io/cluster": "c"}  # not one that it would select
    gke.apply([pod])
    assert "env" not in gke.get("pod", "p", "-n", "default")["spec"]["containers"][0]
