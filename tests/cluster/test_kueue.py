"""Kueue's quota admits one slice at a time."""

from tests.cluster.jobs import example, workers
from tests.testbed.pools import cpu_pool, slice_pools

from torchtpu_operator.tpu.slices import slice_shape

QUEUE = "tpu"


def queue(namespace, chips):
    resources = [{"name": "google.com/tpu", "nominalQuota": chips}]
    resources += [{"name": "cpu", "nominalQuota": "2000"}, {"name": "memory", "nominalQuota": "8Ti"}]
    flavors = [{"name": QUEUE, "resources": resources}]
    group = {"coveredResources": [resource["name"] for resource in resources], "flavors": flavors}
    kueue, cluster = "kueue.x-k8s.io/v1beta2", {"name": QUEUE}
    return [
        {"apiVersion": kueue, "kind": "ResourceFlavor", "metadata": cluster},
        {
            "apiVersion": kueue,
            "kind": "ClusterQueue",
            "metadata": cluster,
            "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
        },
        {
            "apiVersion": kueue,
            "kind": "LocalQueue",
            "metadata": {"name": QUEUE, "namespace": namespace},
            "spec": {"clusterQueue": QUEUE},
        },
    ]


def test_the_second_of_two_jobs_waits_for_the_first(plane, namespace, nodes):
    nodes([*cpu_pool(), *slice_pools("v6e", slice_shape("v6e", "4x4"), 2)])
    plane.apply(queue(namespace, chips=16))
    plane.kubectl("wait", "--for=condition=Active", "--timeout=30s", f"clusterqueue/{QUEUE}")
    for name in ("first", "second"):
        rayjob = example("ddp-v6e-4x4", namespace)
        rayjob["metadata"]["name"] = name
        rayjob["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = QUEUE
        plane.apply([rayjob])
        if name == "first":
            plane.processes.wait(
                lambda: len(workers(plane, namespace)) == 4, "the first job's pods", "kueue", "kuberay"
            )

    def suspended():
        return {
            job["metadata"]["name"]: job["spec"].get("suspend", False) for job in plane.get("rayjobs", "-n", namespace)
        }

    plane.processes.wait(lambda: len(plane.get("workloads", "-n", namespace)) == 2, "both workloads", "kueue")
    assert suspended() == {"first": False, "second": True}
    plane.kubectl("delete", "rayjob", "first", "-n", namespace)
    plane.processes.wait(lambda: suspended() == {"second": False}, "the second job's admission", "kueue")
