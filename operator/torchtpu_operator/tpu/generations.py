"""The TPU generations that GKE offers and this operator takes: numbers that no rule gives.

Sources: GKE autoscaler (labels, machine types, vCPU and memory), xpk 1.16 and the Pathways job API (shapes), GKE TPU
device plugin (type names), Ray 2.60 (its names and its table of shapes).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class MachineType:
    """A kind of TPU host: `chips` of it, virtual CPUs, and memory in GB (10^9 bytes)."""

    name: str
    chips: int
    vcpus: int
    memory_gb: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One TPU generation.

    A shape below 64 chips is one of `small`. From there on (3D only) it is A <= B <= C, each a multiple of 4 and at
    most 256, of at most `max_cubes` cubes of 4x4x4. Sources name few of those: `named`, and the most compact shape of
    each number of cubes up to `compact_cubes`; the rest only follows from the rule. Ray's own table has `ray_named` and
    what lies within `ray_largest`.
    """

    name: str
    accelerator_label: str  # value of cloud.google.com/gke-tpu-accelerator
    dimensions: int
    devices_per_chip: int  # what a framework sees, so ranks per chip
    cores_per_chip: int  # TensorCores; they count in type names only
    type_prefix: str  # of GKE's TPU_ACCELERATOR_TYPE
    ray_version: str  # prefix of Ray's pod type
    machine_types: tuple[MachineType, ...]
    small: tuple[str, ...]
    max_cubes: int = 0
    compact_cubes: int = 0
    named: tuple[str, ...] = ()
    ray_largest: tuple[int, ...] = ()
    ray_named: tuple[str, ...] = ()
    largest_job: int | None = None  # chips of the largest single job that Google documents, where less than the pod

    @property
    def ray_accelerator_type(self) -> str:
        """Ray's name, as in `ray.io/accelerator-type`: `TPU-V6E`."""
        return f"TPU-{self.ray_version.upper()}"

    @property
    def max_chips(self) -> int:
        """Chips of the largest slice: 256 for the flat generations."""
        return self.max_cubes * 64 or 256


_SMALL = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
_NAMED_V4 = ("4x4x4", "4x4x8", "4x4x16", "4x8x8", "8x8x8", "8x8x12", "8x8x16", "4x16x16", "8x16x16")
_RAY_V7X = (*_SMALL, "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")


def _machines(family: str, *sizes: tuple[int, int, int]) -> tuple[MachineType, ...]:
    """Machine types of a family from (chips, vCPUs, GB)."""
    return tuple(MachineType(f"{family}-{chips}t", chips, vcpus, memory) for chips, vcpus, memory in sizes)


_flat = partial(
    Generation,
    dimensions=2,
    devices_per_chip=1,
    cores_per_chip=1,
    small=("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
    ray_largest=(16, 16),
)
_deep = partial(Generation, dimensions=3, cores_per_chip=2)

_ALL = (
    _deep(
        name="v4",
        accelerator_label="tpu-v4-podslice",
        devices_per_chip=1,
        type_prefix="v4",
        ray_version="v4",
        machine_types=_machines("ct4p-hightpu", (4, 240, 407)),
        small=_SMALL,
        max_cubes=64,
        named=_NAMED_V4,
        ray_largest=(12, 12, 16),
    ),
    _flat(
        name="v5e",
        accelerator_label="tpu-v5-lite-podslice",
        type_prefix="v5litepod",
        ray_version="v5litepod",
        machine_types=_machines("ct5lp-hightpu", (1, 24, 48), (4, 112, 192), (8, 224, 384)),
    ),
    _deep(
        name="v5p",
        accelerator_label="tpu-v5p-slice",
        devices_per_chip=1,
        type_prefix="v5p",
        ray_version="v5p",
        machine_types=_machines("ct5p-hightpu", (4, 208, 448)),
        small=_SMALL,
        max_cubes=140,
        compact_cubes=96,
        named=("12x24x24", "16x20x28"),
        ray_largest=(16, 16, 24),
        largest_job=6144,
    ),
    _flat(
        name="v6e",
        accelerator_label="tpu-v6e-slice",
        type_prefix="v6e",
        ray_version="v6e",
        machine_types=_machines("ct6e-standard", (1, 44, 176), (4, 180, 720), (8, 180, 1440)),
    ),
    _deep(
        name="v7x",
        accelerator_label="tpu7x",
        devices_per_chip=2,
        type_prefix="tpu7x",
        ray_version="v7x",
        # Memory: the lower of two sources; the other says 248 and 992.
        machine_types=_machines("tpu7x-standard", (1, 56, 240), (4, 224, 960)),
        small=("1x1x1", *_SMALL),
        max_cubes=144,
        compact_cubes=96,
        named=("12x24x24", "16x16x32", "16x20x28", "16x24x24"),
        ray_named=_RAY_V7X,
    ),
)

GENERATIONS: Mapping[str, Generation] = MappingProxyType({generation.name: generation for generation in _ALL})

# Kinds that people may ask for, and why they get none: the rest of a sentence that begins with the name.
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("v2", "v3", "tpu-v3-device", "tpu-v3-slice"), "is a legacy generation without torch_tpu"),
        **dict.fromkeys(("v4-lite", "tpu-v4-lite-device"), "is a legacy one-host part that Ray does not know"),
        "tpu-v5-lite-device": "is a legacy label for which GKE's device plugin makes no usable environment",
        "tpu7": "is known to neither Ray nor GKE's device plugin, unlike v7x (tpu7x)",
        **dict.fromkeys(
            ("v8", "v8t", "v8i", "tpu8t", "tpu8i"), "has no confirmed GKE label, machine type or topology yet"
        ),
    }
)

# Other names of the same thing: for the command line, and for hints in messages.
ALIASES: Mapping[str, str] = MappingProxyType(
    {"trillium": "v6e", "ironwood": "v7x", "v5litepod": "v5e"}
    | {generation.accelerator_label: generation.name for generation in _ALL}
)
