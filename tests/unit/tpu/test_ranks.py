import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtpu_operator.tpu.generations import GENERATIONS
from torchtpu_operator.tpu.ranks import (
    chip_coordinates,
    chip_of,
    host_coordinates,
    position,
    positions,
    rank_of,
    world_size,
)
from torchtpu_operator.tpu.slices import slice_shape, topologies

SHAPES = [(g.name, t) for g in GENERATIONS.values() for t in topologies(g)]
shapes = st.sampled_from(SHAPES).map(lambda pair: slice_shape(*pair))


@given(shapes, st.integers(1, 256), st.data())
def test_rank_and_position_are_a_bijection(shape, slices, data):
    rank = data.draw(st.integers(0, world_size(shape, slices) - 1))
    at = position(shape, slices, rank)
    assert rank_of(shape, at.slice_id, at.host, at.device) == rank
    assert 0 <= at.slice_id < slices
    assert 0 <= at.host < shape.hosts
    assert 0 <= at.device < shape.devices_per_host
    assert at.rank_in_slice == rank - at.slice_id * shape.devices
    assert at.node_rank == at.slice_id * shape.hosts + at.host


@pytest.mark.parametrize(("name", "topology", "ranks"), [("v5p", "16x20x28", 8960), ("v7x", "16x24x24", 18432)])
def test_the_largest_slices_number_every_device_once(name, topology, ranks):
    shape = slice_shape(name, topology)
    found = list(positions(shape, 1))
    assert [p.rank for p in found] == list(range(ranks))
    assert len({(p.host, p.device) for p in found}) == ranks
    chips = {chip_coordinates(shape, p.host, chip_of(shape, p.device)) for p in found}
    assert len(chips) == shape.chips
    assert max(chips) == tuple(d - 1 for d in shape.dims)


@given(shapes)
def test_hosts_fill_the_grid(shape):
    count = min(shape.hosts, 200)
    assert len({host_coordinates(shape, host) for host in range(count)}) == count
    assert host_coordinates(shape, shape.hosts - 1) == tuple(n - 1 for n in shape.host_grid)


def test_v6e_4x4_by_hand():
    shape = slice_shape("v6e", "4x4")
    at = position(shape, 2, 16 + 6)
    assert (at.slice_id, at.host, at.device, at.node_rank) == (1, 1, 2, 5)
    assert chip_coordinates(shape, 1, 2) == (2, 1, 0)


@pytest.mark.parametrize("rank", [-1, 16])
def test_no_such_rank(rank):
    with pytest.raises(IndexError):
        position(slice_shape("v6e", "4x4"), 1, rank)
