"""Ranks and places are the same thing written twice, for every shape up to the largest."""

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtpu_operator.tpu.generations import GENERATIONS
from torchtpu_operator.tpu.ranks import (
    RankPosition,
    chip_coordinates,
    chip_of,
    host_coordinates,
    position,
    positions,
    rank_of,
    world_size,
)
from torchtpu_operator.tpu.slices import SliceShape, slice_shape, topologies

SHAPES = [slice_shape(name, t) for name, g in GENERATIONS.items() for t in topologies(g)]
SHAPES += [slice_shape(name, "2x4", 4) for name in ("v5e", "v6e")]
LARGEST = [("v5p", "16x20x28"), ("v7x", "16x24x24"), ("v4", "16x16x16"), ("v6e", "16x16"), ("v6e", "2x4")]


@st.composite
def places(draw: st.DrawFn) -> tuple[SliceShape, int, int]:
    shape = draw(st.sampled_from(SHAPES))
    slices = draw(st.integers(1, 256)) if shape.multi_host else 1
    return shape, slices, draw(st.integers(0, shape.devices * slices - 1))


@given(places())
def test_rank_and_place_determine_each_other(place: tuple[SliceShape, int, int]) -> None:
    shape, slices, rank = place
    found = position(shape, slices, rank)
    assert found.rank == rank == rank_of(shape, found.slice_id, found.host, found.device)
    assert 0 <= found.slice_id < slices
    assert 0 <= found.host < shape.hosts
    assert 0 <= found.device < shape.devices_per_host
    assert found.rank_in_slice == rank - found.slice_id * shape.devices
    assert found.node_rank == found.slice_id * shape.hosts + found.host == rank // shape.devices_per_host


@given(places())
def test_chips_of_a_place_lie_in_the_slice(place: tuple[SliceShape, int, int]) -> None:
    shape, slices, rank = place
    found = position(shape, slices, rank)
    chip = chip_of(shape, found.device)
    assert 0 <= chip < shape.chips_per_host
    where, host = chip_coordinates(shape, found.host, chip), host_coordinates(shape, found.host)
    assert all(0 <= a < limit for a, limit in zip(where, shape.grid, strict=True))
    assert host == tuple(a // step for a, step in zip(where, shape.host_grid, strict=True))


@pytest.mark.parametrize(("accelerator", "topology"), LARGEST)
def test_all_ranks_in_order(accelerator: str, topology: str) -> None:
    shape = slice_shape(accelerator, topology)
    slices = 2 if shape.multi_host else 1
    order = [
        (s, h, d) for s in range(slices) for h in range(shape.hosts) for d in range(shape.devices_per_host)
    ]  # slice, then host, then device
    found = list(positions(shape, slices))
    assert [(p.slice_id, p.host, p.device) for p in found] == order
    assert [p.rank for p in found] == list(range(world_size(shape, slices)))


@pytest.mark.parametrize(("accelerator", "topology"), LARGEST)
def test_chips_fill_the_slice_once(accelerator: str, topology: str) -> None:
    shape = slice_shape(accelerator, topology)
    chips = {chip_coordinates(shape, h, c) for h in range(shape.hosts) for c in range(shape.chips_per_host)}
    assert chips == set(product(*(range(edge) for edge in shape.grid)))
    hosts = [host_coordinates(shape, h)[::-1] for h in range(shape.hosts)]
    assert all(a < b for a, b in pairwise(hosts))  # z slowest, x fastest


def test_largest_world() -> None:
    assert world_size(slice_shape("v7x", "16x24x24"), 1) == 18_432
    assert world_size(slice_shape("v5p", "16x20x28"), 2) == 17_920


def test_two_ranks_share_a_v7x_chip() -> None:
    shape = slice_shape("v7x", "2x2x2")
    assert position(shape, 2, 29) == RankPosition(rank=29, slice_id=1, host=1, device=5, rank_in_slice=13, node_rank=3)
    assert [chip_of(shape, device) for device in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [chip_coordinates(shape, 1, chip) for chip in range(4)] == [(0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1)]


def test_places_outside_the_job() -> None:
    shape = slice_shape("v6e", "4x4")
    for rank in (-1, 32):
        with pytest.raises(ValueError, match=f"rank {rank} is not"):
            position(shape, 2, rank)
    for place in ((-1, 0, 0), (0, 4, 0), (0, -1, 0), (0, 0, 4), (0, 0, -1)):
        with pytest.raises(ValueError, match="is not within"):
            rank_of(shape, *place)
    with pytest.raises(ValueError, match="chip 4 is not"):
        chip_coordinates(shape, 0, 4)
