"""Where TPU pods go: node labels, toleration, one pool per slice, one pod per host."""

from typing import Any

from torchtpu_operator.contract import names
from torchtpu_operator.tpu.slices import SliceShape

_POOL = "cloud.google.com/gke-nodepool"  # a multi-host node pool is one slice
_HOST = "kubernetes.io/hostname"
# Not by the replica's name: the API server refuses a key that stands in (mis)matchLabelKeys too.
_HOSTS_OF_SLICES = {"matchExpressions": [{"key": names.LABEL_HOST_INDEX, "operator": "Exists"}]}


def scheduling(shape: SliceShape) -> dict[str, Any]:
    """Pod spec fields of a TPU host."""
    affinity: dict[str, Any] = {"podAntiAffinity": _required(_one_pod_per_host())}
    if shape.multi_host:
        affinity["podAffinity"] = _required(_one_pool_per_slice())
        affinity["podAntiAffinity"] = _required(_one_pod_per_host(), _no_other_slice_in_the_pool())
    return {
        "nodeSelector": shape.node_selector,
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": affinity,
    }


def _required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}


def _one_pool_per_slice() -> dict[str, Any]:
    """All hosts of a replica share the pool that its first one was put in."""
    return {
        "topologyKey": _POOL,
        "labelSelector": _HOSTS_OF_SLICES,
        "matchLabelKeys": [names.LABEL_RAY_CLUSTER, names.LABEL_REPLICA_NAME],
    }


def _no_other_slice_in_the_pool() -> dict[str, Any]:
    return {
        "topologyKey": _POOL,
        "labelSelector": _HOSTS_OF_SLICES,
        "mismatchLabelKeys": [names.LABEL_REPLICA_NAME],
        "namespaceSelector": {},
    }


def _one_pod_per_host() -> dict[str, Any]:
    return {
        "topologyKey": _HOST,
        "labelSelector": {
            "matchLabels": {names.LABEL_RAY_GROUP: names.TPU_GROUP},
            "matchExpressions": [{"key": names.LABEL_JOB_NAME, "operator": "Exists"}],
        },
        "namespaceSelector": {},
    }
