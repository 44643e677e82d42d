"""Environments: what a pod is told about its slice, and what one process is told about its device.

Follows torch_tpu 0.2.0 and torch_xla 2.9.0 as read in their wheels; unverified on hardware.
"""

from collections.abc import Sequence

from torchtpu_operator.contract import ports
from torchtpu_operator.tpu.ranks import RankPosition
from torchtpu_operator.tpu.slices import SliceShape

MAX_STRING = 128 * 1024  # Linux refuses exec with one environment string of this size or more
ADDRESS_BYTES = 20  # "10.244.100.100:8471,"

# Cleared in every rank's process and set anew there; refused in runtime.env.
IDENTITY_VARIABLES = frozenset(
    # torchrun's: who this process is among the others
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_NAME ROLE_WORLD_SIZE "
    "NODE_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS "
    "TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE "
    # GKE's device plugin and webhook, and Ray: which host and chips the pod has, true for the pod, not for one process
    "TPU_WORKER_ID TPU_WORKER_HOSTNAMES TPU_NAME TPU_TOPOLOGY TPU_ACCELERATOR_TYPE TPU_SKIP_MDS_QUERY TPU_HOST_BOUNDS "
    "TPU_CHIPS_PER_HOST_BOUNDS HOST_BOUNDS CHIPS_PER_HOST_BOUNDS TPU_TOPOLOGY_WRAP TPU_TOPOLOGY_ALT "
    # libtpu: the process grid
    "TPU_PROCESS_BOUNDS TPU_CHIPS_PER_PROCESS_BOUNDS TPU_VISIBLE_CHIPS TPU_VISIBLE_DEVICES TPU_PROCESS_ADDRESSES "
    "TPU_PROCESS_PORT CLOUD_TPU_TASK_ID JOB_COMPLETION_INDEX "
    # torch_tpu and torch_xla
    "TORCH_TPU_TOPOLOGY TORCH_TPU_SLICEBUILDER_ADDRESSES TORCH_TPU_DEVICES_PER_HOST TORCH_TPU_BASE_PORT "
    "PJRT_DEVICE PJRT_LOCAL_PROCESS_RANK PJRT_LOCAL_PROCESS_COUNT "
    # several slices
    "MEGASCALE_NUM_SLICES MEGASCALE_SLICE_ID MEGASCALE_COORDINATOR_ADDRESS MEGASCALE_PORT".split()
)


class EnvironmentTooLarge(ValueError):  # noqa: N818 - says what is wrong better than a suffix
    """One variable would be longer than Linux lets a program be started with."""


def pod_environment(shape: SliceShape) -> dict[str, str]:
    """Literals for a TPU worker's container; Ray reads them at `ray start`."""
    environment = {
        "TPU_TOPOLOGY": shape.topology,
        "TPU_ACCELERATOR_TYPE": shape.accelerator_type,
        "TPU_SKIP_MDS_QUERY": "true",
    }
    if shape.generation.devices_per_chip > 1:
        environment["RAY_TPU_RESOURCE_PER_CHIP"] = str(shape.generation.devices_per_chip)
    return environment


def address_list_too_large(shape: SliceShape) -> bool:
    """Whether a list of all devices' addresses would reach the limit of one environment string."""
    return shape.devices * ADDRESS_BYTES >= MAX_STRING


def torch_tpu_environment(
    shape: SliceShape, position: RankPosition, slices: int, hosts: Sequence[str], coordinator: str
) -> dict[str, str]:
    """What torch_tpu needs in one rank's process.

    `hosts` are the addresses of the rank's own slice in worker-id order, `coordinator` that of slice 0, host 0.
    Raises EnvironmentTooLarge.
    """
    environment = {
        "TORCH_TPU_TOPOLOGY": _process_grid(shape),
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": _addresses(shape, hosts, ports.SLICE_BUILDER_TORCH_TPU),
        "TORCH_TPU_DEVICES_PER_HOST": str(shape.devices_per_host),
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_ACCELERATOR_TYPE": shape.accelerator_type,
        "TPU_WORKER_ID": str(position.host),
        "TPU_WORKER_HOSTNAMES": ",".join(hosts),
    }
    if slices > 1:  # torch_tpu computes the port itself, 8080 + 2 * local rank, and ignores a preset one
        environment |= _megascale(position, slices, f"{coordinator}:{ports.MEGASCALE_TORCH_TPU}")
    return _bounded(environment)


def torch_xla_environment(
    shape: SliceShape, position: RankPosition, slices: int, hosts: Sequence[str], coordinator: str
) -> dict[str, str]:
    """What torch_xla needs in one rank's process, one process per device; arguments as for `torch_tpu_environment`."""
    addresses = hosts if shape.multi_host else ["localhost"]
    environment = {
        "PJRT_DEVICE": "TPU",
        "PJRT_LOCAL_PROCESS_RANK": str(position.device),
        "PJRT_LOCAL_PROCESS_COUNT": str(shape.devices_per_host),
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_ACCELERATOR_TYPE": shape.accelerator_type,
        "TPU_HOST_BOUNDS": shape.host_bounds,
        "TPU_CHIPS_PER_HOST_BOUNDS": shape.chips_per_host_bounds,
        "TPU_WORKER_ID": str(position.host),
        "TPU_WORKER_HOSTNAMES": ",".join(addresses),
        "TPU_PROCESS_BOUNDS": _process_grid(shape),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_VISIBLE_CHIPS": str(position.device),
        "CLOUD_TPU_TASK_ID": str(position.rank_in_slice),
        "TPU_PROCESS_ADDRESSES": _addresses(shape, addresses, ports.SLICE_BUILDER_TORCH_XLA),
        "TPU_PROCESS_PORT": str(ports.SLICE_BUILDER_TORCH_XLA + position.device),
    }
    if slices > 1:
        environment |= _megascale(position, slices, f"{coordinator}:{ports.MEGASCALE_TORCH_XLA}")
        environment["MEGASCALE_PORT"] = str(ports.MEGASCALE_TORCH_XLA + position.device)
    return _bounded(environment)


def _process_grid(shape: SliceShape) -> str:
    """The slice's chips as x,y,z; with two devices a chip a fourth number says so."""
    devices = shape.generation.devices_per_chip
    return ",".join(map(str, shape.grid)) + (f",{devices}" if devices > 1 else "")


def _addresses(shape: SliceShape, hosts: Sequence[str], base_port: int) -> str:
    return ",".join(f"{host}:{base_port + device}" for host in hosts for device in range(shape.devices_per_host))


def _megascale(position: RankPosition, slices: int, coordinator: str) -> dict[str, str]:
    return {
        "MEGASCALE_NUM_SLICES": str(slices),
        "MEGASCALE_SLICE_ID": str(position.slice_id),
        "MEGASCALE_COORDINATOR_ADDRESS": coordinator,
    }


def _bounded(environment: dict[str, str]) -> dict[str, str]:
    for name, value in environment.items():
        if len(name) + 1 + len(value) + 1 > MAX_STRING:
            raise EnvironmentTooLarge(
                f"{name} would have {len(value)} bytes; Linux starts no program with {MAX_STRING} or more"
            )
    return environment
