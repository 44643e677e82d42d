"""The real scheduler and the real KubeRay place rendered jobs on GKE-like nodes that KWOK plays."""

from collections import Counter

import pytest
from tests.cluster.jobs import example, workers
from tests.testbed.pools import cpu_pool, slice_pools, tpu_pool

from torchtpu_operator.tpu.slices import slice_shape

V6E = slice_shape("v6e", "4x4")


def node_of(pod):
    return pod["spec"]["nodeName"]


def pool_of(pod):
    return node_of(pod).rsplit("-", 1)[0]


def test_one_slice_on_its_hosts(plane, namespace, nodes):
    nodes([*cpu_pool(), *tpu_pool("v6e", V6E), *tpu_pool("v5e", slice_shape("v5e", "4x4"))])
    plane.apply([example("ddp-v6e-4x4", namespace)])
    plane.processes.wait(lambda: len(workers(plane, namespace)) == 4, "the slice's pods", "kuberay")
    placed = workers(plane, namespace)
    assert sorted(map(node_of, placed)) == [f"gke-v6e-{i}" for i in range(4)]
    labels = [pod["metadata"]["labels"] for pod in placed]
    assert sorted(label["ray.io/replica-host-index"] for label in labels) == ["0", "1", "2", "3"]
    (head,) = plane.get("pods", "-n", namespace, "-l", "ray.io/node-type=head")
    assert node_of(head) == "gke-default-pool-0"


SHAPES = [("v4", "2x2x2"), ("v5e", "4x8"), ("v5p", "2x2x4"), ("v7x", "2x2x2")]


@pytest.mark.parametrize(("accelerator", "topology"), SHAPES)
def test_slices_of_every_generation_keep_to_one_pool_each(plane, namespace, nodes, accelerator, topology):
    shape = slice_shape(accelerator, topology)
    nodes([*cpu_pool(), *slice_pools("a", shape, 3)])
    plane.apply([example("ddp-v6e-4x4", namespace, accelerator=accelerator, topology=topology, slices=2)])
    wanted = 2 * shape.hosts
    plane.processes.wait(lambda: len(workers(plane, namespace)) == wanted, "the slices' pods", "kuberay")
    placed = workers(plane, namespace)
    assert len({node_of(pod) for pod in placed}) == wanted
    pools = {(pod["metadata"]["labels"]["ray.io/worker-group-replica-name"], pool_of(pod)) for pod in placed}
    assert len(pools) == 2
    assert len({pool for _, pool in pools}) == 2


def test_a_slice_waits_rather_than_be_split(plane, namespace, nodes):
    """Four free hosts, but two each of two slices."""
    nodes([*cpu_pool(), *tpu_pool("x", V6E)[:2], *tpu_pool("y", V6E)[:2]])
    plane.apply([example("ddp-v6e-4x4", namespace)])
    plane.processes.wait(lambda: len(workers(plane, namespace)) == 2, "the pods that fit", "kuberay")

    def refused():
        events = plane.get("events", "-n", namespace, "--field-selector=reason=FailedScheduling")
        return {event["involvedObject"]["name"] for event in events}

    plane.processes.wait(lambda: len(refused()) >= 2, "the scheduler's refusals")
    pools = Counter(pool_of(pod) for pod in workers(plane, namespace))
    assert list(pools.values()) == [2]
