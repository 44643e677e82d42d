"""Node pools that look like GKE's, as Node objects for KWOK: labels, taints and capacities of real TPU hosts.

A pool of several hosts is one slice, as on GKE; a pool of single hosts has as many nodes as wanted.
"""

from collections.abc import Iterator
from typing import Any

from tests.testbed.addons import KWOK_ANNOTATION

from torchtpu_operator.tpu.slices import SliceShape

Json = dict[str, Any]

_GIB = 2**30
_ALLOCATABLE = 0.9  # of the machine: less than has been seen on real hosts, so that what fits here fits there
ZONE = "us-central1-b"


def tpu_pool(name: str, shape: SliceShape, nodes: int = 1) -> list[Json]:
    """Nodes of a TPU pool: the hosts of one slice, or `nodes` single hosts."""
    count = shape.hosts if shape.multi_host else nodes
    machine = shape.machine_type
    labels = shape.node_selector | {
        "cloud.google.com/gke-accelerator-count": str(shape.chips_per_host),
        "node.kubernetes.io/instance-type": machine.name,
    }
    capacity = _capacity(machine.vcpus, machine.memory_gb) | {"google.com/tpu": str(shape.chips_per_host)}
    taint = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
    return [_node(f"gke-{name}-{i}", name, labels, capacity, [taint]) for i in range(count)]


def cpu_pool(name: str = "default-pool", nodes: int = 1) -> list[Json]:
    """Plain nodes, for heads, submitters and controllers."""
    labels = {"node.kubernetes.io/instance-type": "n2-standard-32"}
    return [_node(f"gke-{name}-{i}", name, labels, _capacity(32, 128), []) for i in range(nodes)]


def slice_pools(prefix: str, shape: SliceShape, slices: int) -> Iterator[Json]:
    """Nodes for that many slices, each multi-host slice in a pool of its own."""
    if not shape.multi_host:
        yield from tpu_pool(prefix, shape, slices)
        return
    for i in range(slices):
        yield from tpu_pool(f"{prefix}-{i}", shape)


def _capacity(cpus: int, memory_gb: float) -> dict[str, str]:
    memory = int(memory_gb * 1e9 * _ALLOCATABLE) // _GIB
    return {"cpu": str(int(cpus * _ALLOCATABLE)), "memory": f"{memory}Gi", "pods": "110", "ephemeral-storage": "90Gi"}


def _node(name: str, pool: str, labels: dict[str, str], capacity: dict[str, str], taints: list[Json]) -> Json:
    own = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": ZONE,
        "cloud.google.com/gke-nodepool": pool,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": own | labels, "annotations": dict(KWOK_ANNOTATION)},
        "spec": {"taints": taints},
        "status": {"capacity": capacity, "allocatable": capacity},
    }
