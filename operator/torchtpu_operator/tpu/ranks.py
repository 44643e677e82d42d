"""Rank arithmetic: rank = slice-major, host-major, device-minor. One rank is one device."""

from collections.abc import Iterator
from dataclasses import dataclass

from torchtpu_operator.tpu.slices import SliceShape


@dataclass(frozen=True, slots=True)
class RankPosition:
    """Where a rank runs: slice, host (worker id within the slice), device (index on the host, the local rank)."""

    rank: int
    slice_id: int
    host: int
    device: int
    rank_in_slice: int
    node_rank: int  # index of the host over all slices


def world_size(shape: SliceShape, slices: int) -> int:
    """Ranks of the job."""
    return shape.devices * slices


def position(shape: SliceShape, slices: int, rank: int) -> RankPosition:
    """Raises IndexError outside 0..world size - 1."""
    if not 0 <= rank < world_size(shape, slices):
        raise IndexError(f"rank {rank} of {world_size(shape, slices)}")
    slice_id, in_slice = divmod(rank, shape.devices)
    host, device = divmod(in_slice, shape.devices_per_host)
    return RankPosition(rank, slice_id, host, device, in_slice, slice_id * shape.hosts + host)


def rank_of(shape: SliceShape, slice_id: int, host: int, device: int) -> int:
    """The inverse of `position`."""
    return (slice_id * shape.hosts + host) * shape.devices_per_host + device


def positions(shape: SliceShape, slices: int) -> Iterator[RankPosition]:
    """All ranks in order."""
    return (position(shape, slices, rank) for rank in range(world_size(shape, slices)))


def chip_of(shape: SliceShape, device: int) -> int:
    """The chip on the host that a device belongs to; v7x has two devices on each."""
    return device // shape.generation.devices_per_chip


def host_coordinates(shape: SliceShape, host: int) -> tuple[int, int, int]:
    """A host's place in the grid of hosts, x fastest (torch_tpu 0.2.0's host order; unverified on hardware)."""
    return _unravel(host, shape.host_grid)


def chip_coordinates(shape: SliceShape, host: int, chip: int) -> tuple[int, int, int]:
    """A chip's place in the slice, counted in chips, x fastest on the host too (unverified on hardware)."""
    base = host_coordinates(shape, host)
    offset = _unravel(chip, shape.chip_grid)
    x, y, z = (b * size + o for b, size, o in zip(base, shape.chip_grid, offset, strict=True))
    return x, y, z


def _unravel(index: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    return index % grid[0], index // grid[0] % grid[1], index // (grid[0] * grid[1])
