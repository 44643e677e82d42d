"""CPU and memory that pods ask for when their user says nothing."""

from typing import Any

from torchtpu_operator.tpu.slices import SliceShape

Resources = dict[str, dict[str, Any]]

_GIB = 1024**3
_SHARE = 0.8  # of the machine; the rest is for the system's pods (allocatable seen: 90 % and more)
_HEADS = ((4, "2", "8Gi"), (64, "4", "16Gi"), (256, "8", "32Gi"))  # up to so many hosts
_LARGEST_HEAD = ("16", "64Gi")


def worker_resources(shape: SliceShape, chips: bool, trial: bool) -> Resources:
    """Of a TPU host: most of its machine, which no other pod can use; for a trial on CPU just enough, and its chips."""
    if trial:
        memory = f"{1 + shape.devices_per_host}Gi"
        tpu = {"google.com/tpu": str(shape.chips_per_host)} if chips else {}
        return {"requests": {"cpu": "500m", "memory": memory} | tpu, "limits": {"memory": memory} | tpu}
    machine = shape.machine_type
    amounts = {
        "cpu": str(int(machine.vcpus * _SHARE)),
        "memory": f"{int(machine.memory_gb * 1e9 * _SHARE) // _GIB}Gi",
        "google.com/tpu": str(shape.chips_per_host),
    }
    return {"requests": dict(amounts), "limits": dict(amounts)}


def head_resources(hosts: int, trial: bool) -> Resources:
    """Of the head, which runs Ray's control plane and the driver, by the hosts it talks to."""
    if trial:
        return {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
    cpu, memory = next(((cpu, memory) for most, cpu, memory in _HEADS if hosts <= most), _LARGEST_HEAD)
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


def shared_memory(resources: Resources) -> str | None:
    """Half of the memory limit for /dev/shm (Ray's object store, torch_tpu's cache); None: no limit is known."""
    limit = str(resources["limits"].get("memory", ""))
    if limit.endswith("Gi") and limit[:-2].isdigit():
        return f"{int(limit[:-2]) * 512}Mi"
    return None
