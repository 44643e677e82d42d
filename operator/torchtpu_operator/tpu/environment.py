"""The TPU side of a rank's environment, and of its pod's.

Sources: torch_tpu 0.2.0 (what it demands and overwrites), torch_xla 2.9.0 (`configure_topology`), GKE's TPU device
plugin, Ray 2.60 and Google's TPU webhook (multislice). Everything here must be set before torch is imported.
"""

from collections.abc import Sequence
from functools import lru_cache

from torchtpu_operator.contract import ports
from torchtpu_operator.tpu.ranks import RankPosition
from torchtpu_operator.tpu.slices import SliceShape, commas

MAX_STRING = 128 * 1024  # bytes of one NAME=value with its closing NUL that Linux passes to a process
ADDRESS_BYTES = 20  # "10.123.123.123:8471,"

# The runtime owns these: cleared in every rank's process, set anew from the shape, refused in `runtime.env`.
# Not here: tuning (LIBTPU_INIT_ARGS, XLA_FLAGS, TPU_LOG_DIR, TORCH_TPU_* caches and debugging, ...), the user's; and
# WRAP, ALT, TPU_TOPOLOGY_ALT, which the device plugin sets alike for every process.
IDENTITY_VARIABLES: frozenset[str] = frozenset(
    {
        # torchrun's, per process: a second source of ranks would contradict the rank table
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "NODE_RANK"),
        # torchrun's agent: torch and torch_xla behave otherwise where they see it
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
        *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"),
        # an Indexed Job's: torch_tpu takes it for the node rank
        "JOB_COMPLETION_INDEX",
        # which host of which slice: pods hold what Kubernetes or a webhook knew, addresses are bound late
        *("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_NAME", "CLOUD_TPU_TASK_ID"),
        # what the slice is: derived from spec.tpu, and no question to a metadata server (30 tries of a second a key)
        *("TPU_ACCELERATOR_TYPE", "TPU_TOPOLOGY", "TPU_TOPOLOGY_WRAP", "TPU_SKIP_MDS_QUERY"),
        # grids: Ray writes "1,1,1" into the host's for tasks of fewer chips
        *("TPU_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS", "HOST_BOUNDS", "CHIPS_PER_HOST_BOUNDS"),
        *("TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS"),
        # who is where: the webhook writes one address a container, and torch_xla lets what it finds win
        *("TPU_PROCESS_ADDRESSES", "TPU_PROCESS_ADDRESSES_PATH", "TPU_PROCESS_PORT"),
        # which device: Ray writes the chips of its whole task
        *("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_VISIBLE_DEVICE_PATHS"),
        # torch_tpu's three, and the port that it would derive addresses from
        *("TORCH_TPU_TOPOLOGY", "TORCH_TPU_SLICEBUILDER_ADDRESSES", "TORCH_TPU_DEVICES_PER_HOST"),
        "TORCH_TPU_BASE_PORT",
        # torch_xla's device and process counts
        *("PJRT_DEVICE", "PJRT_LOCAL_PROCESS_RANK", "PJRT_LOCAL_PROCESS_COUNT"),
        # slices: stale values make libtpu wait for slices that are gone
        *("MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_COORDINATOR_ADDRESS"),
        *("MEGASCALE_PORT", "MEGASCALE_DEBUG_PORT"),
        # how many TPU resources Ray counts on a host: the driver relies on it
        "RAY_TPU_RESOURCE_PER_CHIP",
    }
)


class EnvironmentTooLarge(ValueError):
    """One variable is longer than Linux passes to a process."""


def torch_tpu_environment(
    shape: SliceShape, position: RankPosition, slices: int, hosts: Sequence[str], coordinator: str
) -> dict[str, str]:
    """What torch_tpu demands of one rank; it derives the rest of libtpu's variables and overwrites them itself.

    `hosts`: addresses of the position's own slice by worker id. `coordinator`: address of host 0 of slice 0.
    TORCH_TPU_TOPOLOGY is computed, whatever the pod says: three numbers, four on v7x (its devices per chip).
    Raises EnvironmentTooLarge.
    """
    base = ports.SLICE_BUILDER_TORCH_TPU
    return _checked(
        _slice_environment(shape, position, hosts)
        | {
            "TORCH_TPU_TOPOLOGY": _process_grid(shape),
            "TORCH_TPU_SLICEBUILDER_ADDRESSES": _addresses(_reachable(shape, hosts), shape.devices_per_host, base),
            "TORCH_TPU_DEVICES_PER_HOST": str(shape.devices_per_host),
        }
        # torch_tpu takes this port and the next, and heeds no other: it is written down for the reader of `plan`.
        | _megascale(position, slices, coordinator, ports.MEGASCALE_TORCH_TPU, 2)
    )


def torch_xla_environment(
    shape: SliceShape, position: RankPosition, slices: int, hosts: Sequence[str], coordinator: str
) -> dict[str, str]:
    """What torch_xla's `configure_topology` would set for one process per device; arguments as above.

    On v7x the process grid has four numbers and the chip grid three. Raises EnvironmentTooLarge.
    """
    base = ports.SLICE_BUILDER_TORCH_XLA
    return _checked(
        _slice_environment(shape, position, hosts)
        | {
            "PJRT_DEVICE": "TPU",
            "PJRT_LOCAL_PROCESS_RANK": str(position.device),
            "PJRT_LOCAL_PROCESS_COUNT": str(shape.devices_per_host),
            "TPU_PROCESS_BOUNDS": _process_grid(shape),
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
            "TPU_PROCESS_ADDRESSES": _addresses(_reachable(shape, hosts), shape.devices_per_host, base),
            "TPU_PROCESS_PORT": str(base + position.device),
            "TPU_VISIBLE_CHIPS": str(position.device),
            "CLOUD_TPU_TASK_ID": str(position.rank_in_slice),
        }
        | _megascale(position, slices, coordinator, ports.MEGASCALE_TORCH_XLA, 1)
    )


def pod_environment(shape: SliceShape) -> dict[str, str]:
    """Literals for the worker pods: what Ray reads when its node starts."""
    variables = {
        "TPU_TOPOLOGY": shape.topology,
        "TPU_ACCELERATOR_TYPE": shape.accelerator_type,
        "TPU_SKIP_MDS_QUERY": "true",
    }
    if shape.generation.devices_per_chip > 1:  # Ray's `TPU` counts devices then, as ranks do
        variables["RAY_TPU_RESOURCE_PER_CHIP"] = str(shape.generation.devices_per_chip)
    return variables


def address_list_too_large(shape: SliceShape) -> bool:
    """Whether the slice's address list would not fit one variable, were its addresses as long as IPv4 has them."""
    return shape.multi_host and shape.devices * ADDRESS_BYTES >= MAX_STRING


def _slice_environment(shape: SliceShape, position: RankPosition, hosts: Sequence[str]) -> dict[str, str]:
    """What GKE's device plugin and a webhook put into the pod, made right for the process."""
    if len(hosts) != shape.hosts:
        raise ValueError(f"{len(hosts)} addresses for the {shape.hosts} hosts of {shape.topology}")
    grids = {"HOST_BOUNDS": shape.host_bounds, "CHIPS_PER_HOST_BOUNDS": shape.chips_per_host_bounds}
    return {
        **grids,  # older libtpu's names
        **{f"TPU_{name}": value for name, value in grids.items()},
        "TPU_ACCELERATOR_TYPE": shape.accelerator_type,
        "TPU_TOPOLOGY": shape.topology,
        "TPU_TOPOLOGY_WRAP": shape.wrap,
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_WORKER_ID": str(position.host),
        "TPU_WORKER_HOSTNAMES": _joined(_reachable(shape, hosts)),
    }


def _reachable(shape: SliceShape, hosts: Sequence[str]) -> tuple[str, ...]:
    return tuple(hosts) if shape.multi_host else ("localhost",)


# Cached: the ranks of a slice share these strings, of up to 128 KiB each.


@lru_cache(maxsize=4)
def _joined(hosts: tuple[str, ...]) -> str:
    return ",".join(hosts)


@lru_cache(maxsize=4)
def _addresses(hosts: tuple[str, ...], devices: int, base: int) -> str:
    """One host:port for each rank of a slice, in rank order."""
    return ",".join(_endpoint(host, base + device) for host in hosts for device in range(devices))


def _endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"  # IPv6 in brackets


def _process_grid(shape: SliceShape) -> str:
    """One process per device: the chips' grid, with a fourth dimension where a chip has several devices."""
    devices = shape.generation.devices_per_chip
    return commas((*shape.grid, devices) if devices > 1 else shape.grid)


def _megascale(position: RankPosition, slices: int, coordinator: str, base: int, step: int) -> dict[str, str]:
    """Several slices over the data-centre network: rank 0 coordinates, and each process of a host has a port."""
    if slices == 1:
        return {}
    return {
        "MEGASCALE_NUM_SLICES": str(slices),
        "MEGASCALE_SLICE_ID": str(position.slice_id),
        "MEGASCALE_COORDINATOR_ADDRESS": _endpoint(coordinator, base),
        "MEGASCALE_PORT": str(base + step * position.device),
    }


def _checked(variables: dict[str, str]) -> dict[str, str]:
    for name, value in variables.items():
        size = len(name) + 1 + len(value.encode())
        if size >= MAX_STRING:
            raise EnvironmentTooLarge(
                f"{name} would take {size} bytes, and Linux passes less than {MAX_STRING} to a process: "
                "use several smaller slices"
            )
    return variables
