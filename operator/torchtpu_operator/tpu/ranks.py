"""Ranks and places: rank = slice-major, then host (worker id), then device.

Google's Ray sample for torch_tpu, the TPU webhook and the vLLM plugin lay ranks out the same way.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torchtpu_operator.tpu.slices import SliceShape


@dataclass(frozen=True, slots=True)
class RankPosition:
    """Where a rank runs; all numbers count from 0."""

    rank: int
    slice_id: int
    host: int  # worker id within the slice
    device: int  # on the host; also the local rank
    rank_in_slice: int
    node_rank: int  # of the host over all slices


def world_size(shape: SliceShape, slices: int) -> int:
    """Ranks of the job."""
    return shape.devices * slices


def rank_of(shape: SliceShape, slice_id: int, host: int, device: int) -> int:
    """The rank at a place. Raises ValueError where the shape has no such place."""
    _within("slice", slice_id, None)
    _within("host", host, shape.hosts)
    _within("device", device, shape.devices_per_host)
    return (slice_id * shape.hosts + host) * shape.devices_per_host + device


def position(shape: SliceShape, slices: int, rank: int) -> RankPosition:
    """The place of a rank. Raises ValueError for a rank outside the job."""
    _within("rank", rank, world_size(shape, slices))
    slice_id, rank_in_slice = divmod(rank, shape.devices)
    host, device = divmod(rank_in_slice, shape.devices_per_host)
    return RankPosition(rank, slice_id, host, device, rank_in_slice, slice_id * shape.hosts + host)


def positions(shape: SliceShape, slices: int) -> Iterator[RankPosition]:
    """Every rank's place, in rank order."""
    return (position(shape, slices, rank) for rank in range(world_size(shape, slices)))


def chip_of(shape: SliceShape, device: int) -> int:
    """The chip, counted on its host, that a device of the host is on."""
    _within("device", device, shape.devices_per_host)
    return device // shape.generation.devices_per_chip


def host_coordinates(shape: SliceShape, host: int) -> tuple[int, int, int]:
    """Where a host lies in the slice, in hosts along x, y, z: x fastest, as torch_tpu orders hosts."""
    _within("host", host, shape.hosts)
    return _unravel(host, shape.hosts_grid)


def chip_coordinates(shape: SliceShape, host: int, chip: int) -> tuple[int, int, int]:
    """Where a chip lies in the slice, in chips along x, y, z.

    On a host x is fastest too. That order is not verified on hardware: use it to show places, not to address chips.
    """
    _within("chip", chip, shape.chips_per_host)
    (x, y, z), (a, b, c) = host_coordinates(shape, host), shape.host_grid
    i, j, k = _unravel(chip, shape.host_grid)
    return x * a + i, y * b + j, z * c + k


def _unravel(index: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = grid
    return index % x, index // x % y, index // (x * y)


def _within(what: str, value: int, limit: int | None) -> None:
    if value < 0 or (limit is not None and value >= limit):
        raise ValueError(f"{what} {value} is not within 0 to {'' if limit is None else limit - 1}")
