"""The TPU generations that GKE offers and Ray knows, and the kinds that are refused, with the reason.

Sources: the GKE cluster autoscaler's machine type tables (machine types, vCPU, memory), the GKE TPU device plugin
(naming, devices), Ray 2.60 `ray/_private/accelerators/tpu.py` (Ray's names), xpk 1.16.0 (topology rules and lists).
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachineType:
    """A TPU host: chips, vCPUs and memory in GB (10^9 bytes) of one machine."""

    name: str
    chips: int
    vcpus: int
    memory_gb: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One TPU generation.

    `type_prefix` and `cores_per_chip` make GKE's accelerator type (`v5p-16` is 8 chips of 2 cores); `devices_per_chip`
    is what a framework sees. `max_cubes` bounds 3D topologies in cubes of 4x4x4 chips. `ray_bound` is the largest
    sorted 3D topology in Ray's table, dimension by dimension; where that table is no box, `ray_shapes` lists it.
    """

    name: str
    accelerator_label: str
    dimensions: int
    cores_per_chip: int
    devices_per_chip: int
    type_prefix: str
    ray_prefix: str
    ray_accelerator_type: str
    machine_types: tuple[MachineType, ...]
    max_cubes: int = 0
    largest_job_chips: int | None = None
    ray_bound: tuple[int, int, int] | None = None
    ray_shapes: frozenset[str] | None = None
    listed: frozenset[str] = frozenset()


# Shapes that the vendor's tools list by name; every other multiple of a cube follows from a rule only.
_CUBES_SMALL = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x12 8x8x16 8x16x16".split()
_V4_LISTED = frozenset([*_CUBES_SMALL, "4x4x16", "4x16x16"])
_V5P_LISTED = frozenset(
    [
        *_CUBES_SMALL,
        *"4x4x12 4x4x20 4x8x12 4x4x28 4x12x12 4x8x20 4x4x44 4x4x52 4x8x28 4x12x20 4x4x68 8x12x12 4x4x76 8x8x20".split(),
        *"4x12x28 4x8x44 4x4x92 8x12x16 4x20x20 4x8x52 12x12x12 8x8x28 4x4x116 8x12x20 4x4x124 4x12x44 4x8x68".split(),
        *"4x20x28 12x12x16 4x4x148 4x8x76 4x12x52 8x16x20 4x4x164 8x12x28 4x4x172 8x8x44 12x12x20 4x8x92".split(),
        *"4x4x188 12x16x16 4x28x28 8x20x20 4x12x68 8x8x52 4x4x212 12x12x24 4x20x44 8x16x28 4x12x76 4x8x116".split(),
        *"4x4x236 12x16x20 4x4x244 4x8x124 12x12x28 16x16x16 4x20x52 8x12x44 8x8x68 4x12x92 8x20x28 12x16x24".split(),
        *"4x8x148 12x20x20 8x8x76 4x28x44 8x12x52 16x16x20 12x12x36 4x8x164 12x16x28 4x20x68 4x8x172 4x12x116".split(),
        *"8x16x44 12x20x24 4x28x52 8x8x92 4x12x124 4x8x188 4x20x76 16x16x24 12x24x24 16x20x28".split(),
    ]
)
_V7X_LISTED = _V5P_LISTED | {"1x1x1", "16x16x32", "16x24x24"}
_V7X_RAY = frozenset("2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16".split())

_ALL = (
    Generation(
        "v4", "tpu-v4-podslice", 3, 2, 1, "v4", "v4", "TPU-V4",
        (MachineType("ct4p-hightpu-4t", 4, 240, 407),),
        max_cubes=64, ray_bound=(12, 12, 16), listed=_V4_LISTED,
    ),
    Generation(
        "v5e", "tpu-v5-lite-podslice", 2, 1, 1, "v5litepod", "v5litepod", "TPU-V5LITEPOD",
        (
            MachineType("ct5lp-hightpu-1t", 1, 24, 48),
            MachineType("ct5lp-hightpu-4t", 4, 112, 192),
            MachineType("ct5lp-hightpu-8t", 8, 224, 384),
        ),
    ),
    Generation(
        "v5p", "tpu-v5p-slice", 3, 2, 1, "v5p", "v5p", "TPU-V5P",
        (MachineType("ct5p-hightpu-4t", 4, 208, 448),),
        max_cubes=140, largest_job_chips=6144, ray_bound=(16, 16, 24), listed=_V5P_LISTED,
    ),
    Generation(
        "v6e", "tpu-v6e-slice", 2, 1, 1, "v6e", "v6e", "TPU-V6E",
        (
            MachineType("ct6e-standard-1t", 1, 44, 176),
            MachineType("ct6e-standard-4t", 4, 180, 720),
            MachineType("ct6e-standard-8t", 8, 180, 1440),
        ),
    ),
    Generation(
        "v7x", "tpu7x", 3, 2, 2, "tpu7x", "v7x", "TPU-V7X",
        # Two sources differ on memory (992/248 and 960/240 GB): the lower, so that a request fits either way.
        (MachineType("tpu7x-standard-1t", 1, 56, 240), MachineType("tpu7x-standard-4t", 4, 224, 960)),
        max_cubes=144, ray_shapes=_V7X_RAY, listed=_V7X_LISTED,
    ),
)  # fmt: skip

GENERATIONS: Mapping[str, Generation] = {generation.name: generation for generation in _ALL}

REFUSED: Mapping[str, str] = {
    "v2": "v2 is not offered on GKE",
    "v3": "v3 is legacy: its multi-host shapes are not confirmed and Ray has no table for its GKE shapes",
    "v4-lite": "v4-lite is legacy and Ray has no mapping for its label tpu-v4-lite-device",
    "tpu-v5-lite-device": "the v5e device label is legacy: the GKE device plugin gives its pods no usable environment; "
    "use v5e on tpu-v5-lite-podslice",
    "tpu7": "tpu7 is unknown to the GKE device plugin and to Ray; v7x is the supported variant",
    "tpu8": "no 8th generation label, machine type or topology is published for GKE",
}

# Other spellings people use. The API stores one; the command line understands these.
ALIASES: Mapping[str, str] = {
    "trillium": "v6e",
    "ironwood": "v7x",
    "tpu7x": "v7x",
    "v5litepod": "v5e",
    "v5lite": "v5e",
    **{generation.accelerator_label: generation.name for generation in _ALL},
    **{generation.ray_accelerator_type.lower(): generation.name for generation in _ALL},
}
