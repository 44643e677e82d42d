"""Legal slice shapes, and what follows from one: hosts, devices, names, bounds, node selector."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from torchtpu_operator.tpu.generations import ALIASES, GENERATIONS, REFUSED, Generation, MachineType

MAX_SLICES = 256
MAX_SHOWN = 40  # characters of what was written that a message repeats
MAX_DIMENSION = 256  # in chips; what xpk's generator stops at
_HOST_GRIDS = {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}  # chips on a host: how they lie


class ShapeError(ValueError):
    """A shape that GKE does not have. `field` is the API's name of what is wrong, `message` a whole sentence."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class SliceShape:
    """One slice. Made by `slice_shape`, which checks it; made by hand it may be a shape that does not exist."""

    generation: Generation
    topology: str
    chips_per_host: int

    @property
    def dims(self) -> tuple[int, ...]:
        """Chips along each dimension: two or three numbers."""
        return _dims(self.topology)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Chips along x, y, z."""
        return _grid(self.dims)

    @property
    def host_grid(self) -> tuple[int, int, int]:
        """Chips of one host along x, y, z."""
        return _HOST_GRIDS[self.chips_per_host]

    @property
    def hosts_grid(self) -> tuple[int, int, int]:
        """Hosts along x, y, z."""
        (x, y, z), (a, b, c) = self.grid, self.host_grid
        return x // a, y // b, z // c

    @property
    def chips(self) -> int:
        """Chips of the slice."""
        return prod(self.dims)

    @property
    def hosts(self) -> int:
        """Hosts of the slice, each one pod."""
        return self.chips // self.chips_per_host

    @property
    def devices(self) -> int:
        """Devices a framework sees in the slice, so its ranks."""
        return self.chips * self.generation.devices_per_chip

    @property
    def devices_per_host(self) -> int:
        """Devices of one host, so its ranks."""
        return self.chips_per_host * self.generation.devices_per_chip

    @property
    def multi_host(self) -> bool:
        """More than one host."""
        return self.hosts > 1

    @property
    def machine_type(self) -> MachineType:
        """The kind of host."""
        return next(m for m in self.generation.machine_types if m.chips == self.chips_per_host)

    @property
    def accelerator_type(self) -> str:
        """GKE's TPU_ACCELERATOR_TYPE; the number counts TensorCores: `v5p-128` has 64 chips."""
        return f"{self.generation.type_prefix}-{self.chips * self.generation.cores_per_chip}"

    @property
    def ray_pod_type(self) -> str:
        """Ray's pod type, as in its head resource `TPU-<pod type>-head`. Shapes of equal size share it."""
        return f"{self.generation.ray_version}-{self.chips * self.generation.cores_per_chip}"

    @property
    def ray_accelerator_type(self) -> str:
        """Ray's name of the generation: `TPU-V6E`."""
        return self.generation.ray_accelerator_type

    @property
    def node_selector(self) -> dict[str, str]:
        """Labels of the nodes. The count only where a topology comes with two kinds of host: smaller pods fit both."""
        selector = {
            "cloud.google.com/gke-tpu-accelerator": self.generation.accelerator_label,
            "cloud.google.com/gke-tpu-topology": self.topology,
        }
        if self.chips_per_host != _hosts_of(self.topology)[0]:
            selector["cloud.google.com/gke-accelerator-count"] = str(self.chips_per_host)
        return selector

    @property
    def host_bounds(self) -> str:
        """TPU_HOST_BOUNDS: the grid of hosts, `2,2,1`."""
        return commas(self.hosts_grid)

    @property
    def chips_per_host_bounds(self) -> str:
        """TPU_CHIPS_PER_HOST_BOUNDS: the grid of chips on a host, `2,2,1`."""
        return commas(self.host_grid)

    @property
    def wrap(self) -> str:
        """TPU_TOPOLOGY_WRAP: which dimensions close to a ring. Flat: those of 16; 3D: all, from a cube upward."""
        x, y, z = self.grid
        flat = self.generation.dimensions == 2
        ring = (x == 16, y == 16, False) if flat else (x % 4 == y % 4 == z % 4 == 0,) * 3
        return ",".join(str(r).lower() for r in ring)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before waiting for such a slice; whole sentences."""
        generation, name, found = self.generation, f"{self.generation.name} {self.topology}", []
        if self.topology not in _listed(generation):
            compact = _compact(generation)[self.chips]
            found.append(
                f"{name} follows GKE's rule for shapes but is on no published list, so there may be no capacity for it"
                + (f"; the usual shape of {self.chips} chips is {compact}" if compact != self.topology else "")
            )
        if generation.largest_job and self.chips > generation.largest_job:
            found.append(
                f"{name} has {self.chips} chips; the largest single job documented is {generation.largest_job}"
            )
        if not _in_ray_table(generation, self.topology):
            found.append(
                f"Ray 2.60 has no {name} in its table: programs that ask Ray for a slice by topology "
                "(SlicePlacementGroup, ScalingConfig.topology) fail on it"
            )
        return tuple(found)


@lru_cache(maxsize=256)
def slice_shape(accelerator: str, topology: str, chips_per_host: int | None = None) -> SliceShape:
    """The shape, checked. Without `chips_per_host` the biggest hosts: one 8-chip host for 2x4. Raises ShapeError."""
    generation = GENERATIONS.get(accelerator)
    if generation is None:
        raise ShapeError("accelerator", _no_accelerator(accelerator))
    if topology not in _table(generation):
        raise ShapeError("topology", _no_topology(generation, topology))
    allowed = _hosts_of(topology)
    if chips_per_host is None:
        return SliceShape(generation, topology, allowed[0])
    if chips_per_host not in allowed:
        raise ShapeError("chipsPerHost", _no_hosts(generation, topology, chips_per_host, allowed))
    return SliceShape(generation, topology, chips_per_host)


def check_slices(shape: SliceShape, slices: int) -> None:
    """Raises ShapeError unless that many slices of the shape can form one job."""
    name = f"{shape.generation.name} {shape.topology}"
    if not 1 <= slices <= MAX_SLICES:
        raise ShapeError("slices", f"slices is {_number(slices)}; allowed: 1 to {MAX_SLICES}")
    if slices > 1 and not shape.multi_host:
        two_kinds = len(_hosts_of(shape.topology)) > 1
        use = f"{shape.topology} with chipsPerHost 4" if two_kinds else _first_multi_host(shape.generation)
        raise ShapeError(
            "slices",
            f"{slices} slices of {name} cannot form one job: GKE joins slices of several hosts only, and this one is a "
            f"single host of {_chips(shape.chips)}; nearest: slices 1, or {use}",
        )


def topologies(generation: Generation) -> Iterator[str]:
    """Every legal topology, by chips and then by dimensions."""
    return iter(_table(generation))


def commas(numbers: tuple[int, ...]) -> str:
    """`2,2,1`: how TPU variables write grids."""
    return ",".join(map(str, numbers))


def _dims(topology: str) -> tuple[int, ...]:
    return tuple(int(d) for d in topology.split("x"))


def _grid(dims: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*dims, 1)[:3]
    return x, y, z


@lru_cache(maxsize=8)
def _table(generation: Generation) -> Mapping[str, tuple[int, ...]]:
    shapes = {_dims(text) for text in generation.small}
    cubes, side = generation.max_cubes, MAX_DIMENSION // 4
    for a in range(1, cubes + 1):
        for b in range(a, cubes // a + 1):
            shapes |= {(4 * a, 4 * b, 4 * c) for c in range(b, min(side, cubes // (a * b)) + 1)}
    return {"x".join(map(str, dims)): dims for dims in sorted(shapes, key=lambda dims: (prod(dims), dims))}


@lru_cache(maxsize=8)
def _compact(generation: Generation) -> Mapping[int, str]:
    """The shape of least edge sum for each number of chips."""
    by_sum = sorted(_table(generation).items(), key=lambda item: -sum(item[1]))
    return {prod(dims): text for text, dims in by_sum}


@lru_cache(maxsize=8)
def _listed(generation: Generation) -> frozenset[str]:
    compact = {text for chips, text in _compact(generation).items() if 64 <= chips <= 64 * generation.compact_cubes}
    return frozenset({*generation.small, *generation.named, *compact})


def _in_ray_table(generation: Generation, topology: str) -> bool:
    within = zip(_dims(topology), generation.ray_largest, strict=False)
    return topology in generation.ray_named or (bool(generation.ray_largest) and all(d <= most for d, most in within))


def _hosts_of(topology: str) -> tuple[int, ...]:
    """Chips per host that the topology comes with, most first. Only 2x4 has two."""
    chips = prod(_dims(topology))
    if chips < 4:
        return (1,)
    return (8, 4) if topology == "2x4" else (4,)


def _first_multi_host(generation: Generation) -> str:
    return next(t for t, dims in _table(generation).items() if prod(dims) > _hosts_of(t)[0])


# Messages. What was written is shown cut and escaped, so that they stay short and on one line.


def _quoted(text: str) -> str:
    return ascii(text) if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]!a}... ({len(text)} characters)"


def _number(value: int) -> str:
    return str(value) if abs(value) < 10**9 else "over 999999999" if value > 0 else "under -999999999"


def _chips(count: int) -> str:
    return f"{_number(count)} chip{'' if count == 1 else 's'}"


def _no_accelerator(accelerator: str) -> str:
    allowed = f"allowed: {', '.join(GENERATIONS)}"
    name = accelerator[:MAX_SHOWN].strip().lower()
    for known in (name, name.split("-")[0]):  # v6e-16, as clouds and command lines name a slice
        if known in REFUSED:
            return f"accelerator {known} {REFUSED[known]}; {allowed}"
        meant = known if known in GENERATIONS else ALIASES.get(known)
        if meant:
            return f"accelerator {_quoted(accelerator)} is written {meant}, and its size is the topology; {allowed}"
    return f"there is no accelerator {_quoted(accelerator)}; {allowed}"


def _no_topology(generation: Generation, topology: str) -> str:
    # Digits of other scripts, leading zeros and stray signs are not legal, but they say what may be meant.
    dims = tuple(int(d) for d in re.findall(r"\d{1,4}", topology)) if len(topology) <= MAX_SHOWN else ()
    advice = f"{_nearest(generation, dims)}; allowed: {_rule(generation)}"
    if not re.fullmatch(r"[1-9][0-9]{0,3}(x[1-9][0-9]{0,3}){0,7}", topology):
        return f"{_quoted(topology)} is not a topology: write plain numbers from 1 joined by x{advice}"
    if len(dims) != generation.dimensions:
        return f"{generation.name} has topologies of {generation.dimensions} dimensions, not {topology}{advice}"
    for text, legal in _table(generation).items():
        if sorted(legal) == sorted(dims):
            return f"{generation.name} has no topology {topology}: the order of its numbers is fixed, so write {text}"
    return f"{generation.name} has no topology {topology}{advice}"


def _rule(generation: Generation) -> str:
    small = ", ".join(generation.small)
    if not generation.max_cubes:
        return small
    cubes = f"multiples of 4 up to {MAX_DIMENSION}, at most {generation.max_chips} chips"
    return f"{small}, or AxBxC with A <= B <= C, {cubes}"


def _nearest(generation: Generation, dims: tuple[int, ...]) -> str:
    """`; nearest: ...`: a shape of as many chips, else the next smaller and the next larger; usual shapes first."""
    chips, table, listed = prod(dims), _table(generation), _listed(generation)
    if not dims:
        return ""

    def unlike(text: str) -> tuple[int, bool, int]:
        apart = sum(abs(a - b) for a, b in zip(sorted(table[text]), sorted(dims), strict=False))
        return abs(prod(table[text]) - chips), text not in listed, apart

    same = [t for t in table if prod(table[t]) == chips]
    below = [t for t in table if prod(table[t]) < chips]
    above = [t for t in table if prod(table[t]) > chips]
    best = [min(side, key=unlike) for side in ([same] if same else [below, above]) if side]
    return "; nearest: " + ", ".join(f"{t} ({_chips(prod(table[t]))})" for t in best)


def _no_hosts(generation: Generation, topology: str, chips: int, allowed: tuple[int, ...]) -> str:
    choices = " or ".join(map(str, allowed))
    why = "; 8-chip hosts never join others" if chips == 8 and generation.dimensions == 2 and allowed == (4,) else ""
    return f"{generation.name} {topology} has no hosts of {_chips(chips)}; allowed: {choices}{why}"
