"""One TPU slice: which topologies exist, and everything that follows from generation, topology and chips per host."""

import functools
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchtpu_operator.tpu.generations import ALIASES, GENERATIONS, REFUSED, Generation, MachineType

MAX_SLICES = 256
MAX_DIMENSION = 256  # the largest dimension in xpk's generator
CUBE_CHIPS = 64  # 4x4x4: from here on every dimension is a multiple of 4

_TOPOLOGIES_2D = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_BASE_3D = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
_ONE_CHIP = ("1x1", "1x1x1")
_CHIP_GRID = {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}  # chips of one host, as the GKE device plugin has them
_TOPOLOGY = re.compile(r"[1-9][0-9]{0,3}(?:x[1-9][0-9]{0,3}){1,3}", re.ASCII)


class ShapeError(ValueError):
    """A slice that does not exist. `field` names the part of `spec.tpu` that is wrong; `message` is for people."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class SliceShape:
    """A legal slice; `slice_shape` makes them. Bounds are GKE's text form, `x,y,z`."""

    generation: Generation
    topology: str
    chips_per_host: int

    @property
    def dims(self) -> tuple[int, ...]:
        """The topology's numbers, two or three of them."""
        return _dims(self.topology)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Chips along x, y, z."""
        x, y, z = (*self.dims, 1)[:3]
        return x, y, z

    @property
    def chips(self) -> int:
        """Chips of the slice."""
        return math.prod(self.dims)

    @property
    def hosts(self) -> int:
        """Machines of the slice, hence pods."""
        return self.chips // self.chips_per_host

    @property
    def devices_per_host(self) -> int:
        """Devices that a framework sees on one host, hence processes."""
        return self.chips_per_host * self.generation.devices_per_chip

    @property
    def devices(self) -> int:
        """Devices of the slice, hence ranks."""
        return self.chips * self.generation.devices_per_chip

    @property
    def multi_host(self) -> bool:
        """Whether the slice is a multi-host node pool."""
        return self.hosts > 1

    @property
    def machine_type(self) -> MachineType:
        """The machine whose chips are exactly this host's."""
        return next(m for m in self.generation.machine_types if m.chips == self.chips_per_host)

    @property
    def accelerator_type(self) -> str:
        """GKE's TPU_ACCELERATOR_TYPE, counted in cores: `v6e-16`, `v5p-16`, `tpu7x-16`."""
        return f"{self.generation.type_prefix}-{self.chips * self.generation.cores_per_chip}"

    @property
    def ray_pod_type(self) -> str:
        """Ray's name of the same: `v7x-16` where GKE says `tpu7x-16`."""
        return f"{self.generation.ray_prefix}-{self.chips * self.generation.cores_per_chip}"

    @property
    def ray_accelerator_type(self) -> str:
        """Ray's `accelerator_type` resource, `TPU-V6E`."""
        return self.generation.ray_accelerator_type

    @property
    def node_selector(self) -> dict[str, str]:
        """GKE node labels that pick this slice's hosts."""
        labels = {
            "cloud.google.com/gke-tpu-accelerator": self.generation.accelerator_label,
            "cloud.google.com/gke-tpu-topology": self.topology,
        }
        if self.topology == "2x4" and self.chips_per_host == 4:  # a 4-chip pod would also fit the one-host 2x4 machine
            labels["cloud.google.com/gke-accelerator-count"] = "4"
        return labels

    @property
    def host_grid(self) -> tuple[int, int, int]:
        """Hosts along x, y, z."""
        x, y, z = (
            max(1, chips // host) for chips, host in zip(self.grid, _CHIP_GRID[self.chips_per_host], strict=True)
        )
        return x, y, z

    @property
    def chip_grid(self) -> tuple[int, int, int]:
        """Chips of one host along x, y, z."""
        return _CHIP_GRID[self.chips_per_host]

    @property
    def host_bounds(self) -> str:
        """GKE's TPU_HOST_BOUNDS."""
        return ",".join(map(str, self.host_grid))

    @property
    def chips_per_host_bounds(self) -> str:
        """GKE's TPU_CHIPS_PER_HOST_BOUNDS."""
        return ",".join(map(str, self.chip_grid))

    @property
    def wrap(self) -> str:
        """GKE's TPU_TOPOLOGY_WRAP: 3D from one cube up in all dimensions, 2D in a dimension of 16."""
        if self.generation.dimensions == 3:
            wraps = (all(d % 4 == 0 for d in self.dims),) * 3
        else:
            wraps = (self.dims[0] == 16, self.dims[1] == 16, False)
        return ",".join(str(w).lower() for w in wraps)

    @property
    def rule_only(self) -> bool:
        """Whether the shape follows from GKE's rule but no vendor tool lists it."""
        return self.generation.dimensions == 3 and self.topology not in self.generation.listed

    @property
    def in_ray_table(self) -> bool:
        """Whether Ray 2.60 accepts the topology in `SlicePlacementGroup` and `ScalingConfig`."""
        generation = self.generation
        if generation.ray_shapes is not None:
            return self.topology in generation.ray_shapes
        if generation.ray_bound is None:
            return True
        return all(d <= bound for d, bound in zip(self.dims, generation.ray_bound, strict=True))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is legal but deserves a word."""
        found = []
        name, largest = self.generation.name, self.generation.largest_job_chips
        if self.rule_only:
            found.append(f"{name} {self.topology} follows from GKE's rule, but no published list names it")
        if largest and self.chips > largest:
            found.append(
                f"{name} {self.topology} has {self.chips} chips; the documented largest single job has {largest}"
            )
        if not self.in_ray_table:
            found.append(f"Ray 2.60 has no {name} {self.topology} in its table: its slice placement API refuses it")
        return tuple(found)


def topologies(generation: Generation) -> Iterator[str]:
    """Every legal topology of a generation, in no particular order of size."""
    if generation.dimensions == 2:
        yield from _TOPOLOGIES_2D
        return
    if any(machine.chips == 1 for machine in generation.machine_types):
        yield "1x1x1"
    yield from _BASE_3D
    largest = MAX_DIMENSION // 4
    for a, b in itertools.combinations_with_replacement(range(1, largest + 1), 2):
        for c in range(b, min(largest, generation.max_cubes // (a * b)) + 1):
            yield f"{4 * a}x{4 * b}x{4 * c}"


@functools.cache
def slice_shape(accelerator: str, topology: str, chips_per_host: int | None = None) -> SliceShape:
    """The slice of a generation (`v6e`) and topology (`4x4`).

    `chips_per_host` None means the largest host that holds the slice alone, else 4 chips (1 for one-chip hosts).
    Raises ShapeError for anything that GKE does not offer.
    """
    generation = _generation(accelerator)
    if topology not in _legal(generation.name):
        raise ShapeError("topology", _wrong_topology(generation, topology))
    allowed = _hosts_for(generation, topology)
    chips = allowed[0] if chips_per_host is None else chips_per_host
    if chips not in allowed:
        raise ShapeError(
            "chipsPerHost",
            f"{generation.name} {topology} has no hosts of {_short(chips)} chips; "
            f"allowed: {', '.join(map(str, allowed))}",
        )
    return SliceShape(generation, topology, chips)


def check_slices(shape: SliceShape, slices: int) -> None:
    """Raise ShapeError unless a job may have this many slices of the shape."""
    if not 1 <= slices <= MAX_SLICES:
        raise ShapeError("slices", f"slices must be 1 to {MAX_SLICES}, got {_short(slices)}")
    if slices > 1 and not shape.multi_host:
        raise ShapeError(
            "slices",
            f"{slices} slices need a multi-host topology: GKE runs multi-slice over multi-host node pools only, and "
            f"{shape.generation.name} {shape.topology} with {shape.chips_per_host} chips per host is a single host",
        )


@functools.cache
def _legal(name: str) -> frozenset[str]:
    return frozenset(topologies(GENERATIONS[name]))


def _generation(accelerator: str) -> Generation:
    found = GENERATIONS.get(accelerator)
    if found:
        return found
    allowed = f"allowed: {', '.join(GENERATIONS)}"
    key = accelerator.lower()
    if key in REFUSED:
        raise ShapeError("accelerator", f"{REFUSED[key]}; {allowed}")
    if key in ALIASES or key in GENERATIONS:
        name = ALIASES.get(key, key)
        raise ShapeError("accelerator", f"{_short(accelerator)} is written {name} here; {allowed}")
    raise ShapeError("accelerator", f"no TPU generation {_short(accelerator)}; {allowed}")


def _hosts_for(generation: Generation, topology: str) -> tuple[int, ...]:
    """Legal chips per host, the default first. 8-chip hosts never join a multi-host slice."""
    if topology in _ONE_CHIP:
        return (1,)
    if topology == "2x4":
        return (8, 4)
    return (4,)


def _dims(topology: str) -> tuple[int, ...]:
    return tuple(int(part) for part in topology.split("x"))


def _wrong_topology(generation: Generation, topology: str) -> str:
    name, dimensions = generation.name, generation.dimensions
    example = "4x4" if dimensions == 2 else "2x2x4"
    if not _TOPOLOGY.fullmatch(topology):
        return f"{_short(topology)} is not a topology; {name} has {dimensions} dimensions, as in {example}"
    dims = _dims(topology)
    if len(dims) != dimensions:
        return f"{name} topologies have {dimensions} numbers, as in {example}; got {topology}"
    for ordered in ("x".join(map(str, sorted(dims))), "x".join(map(str, sorted(dims, reverse=True)))):
        if ordered in _legal(name):
            return f"{name} has no topology {topology}: GKE writes it {ordered}"
    return f"{name} has no topology {topology}; nearest: {_nearest(generation, dims)}"


def _nearest(generation: Generation, dims: tuple[int, ...]) -> str:
    """The next smaller or equal and the next larger legal shape by chips, the closest in form among equals."""
    wanted, form = math.prod(dims), sorted(dims)
    ranked = sorted(
        (math.prod(_dims(t)), sum(abs(a - b) for a, b in zip(sorted(_dims(t)), form, strict=True)), t)
        for t in _legal(generation.name)
    )
    below = [entry for entry in ranked if entry[0] <= wanted]
    above = [entry for entry in ranked if entry[0] > wanted]
    picks = [min((e for e in below if e[0] == below[-1][0]), key=lambda e: e[1:])] if below else []
    picks += above[:1]
    return ", ".join(f"{t} ({chips} chip{'s' if chips > 1 else ''})" for chips, _, t in picks)


def _short(value: object) -> str:
    """A user's value, quoted, cut and free of control characters."""
    if isinstance(value, int):
        return str(value) if abs(value) < 10**12 else "a huge number"
    text = ascii(str(value)[:41])
    return text if len(text) <= 42 else text[:41] + "...'"
