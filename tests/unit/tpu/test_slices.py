import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtpu_operator.tpu.generations import ALIASES, GENERATIONS, REFUSED
from torchtpu_operator.tpu.slices import ShapeError, check_slices, slice_shape, topologies

CSV = Path(__file__).parents[2] / "data" / "tpu-slices.csv"


def rows() -> list[dict[str, str]]:
    with CSV.open() as file:
        return list(csv.DictReader(file))


def named(row: dict[str, str]) -> str:
    return {"tpu7x": "v7x"}.get(row["generation"], row["generation"])


def described(shape) -> dict[str, str]:
    return {
        "accelerator_label": shape.generation.accelerator_label,
        "machine_type": shape.machine_type.name,
        "chips": str(shape.chips),
        "hosts": str(shape.hosts),
        "chips_per_host": str(shape.chips_per_host),
        "multi_host": str(shape.multi_host).lower(),
        "ray_accelerator_type": shape.ray_accelerator_type,
        "ray_pod_type": shape.ray_pod_type,
    }


def test_every_published_row_is_computed_exactly():
    for row in rows():
        shape = slice_shape(named(row), row["topology"], int(row["chips_per_host"]))
        assert described(shape) == {key: row[key] for key in described(shape)}, row


def test_nothing_is_legal_that_no_row_has():
    published = {(named(row), row["topology"], int(row["chips_per_host"])) for row in rows()}
    ours = set()
    for name, generation in GENERATIONS.items():
        for topology in topologies(generation):
            for chips in (1, 2, 4, 8):
                try:
                    shape = slice_shape(name, topology, chips)
                except ShapeError as error:
                    assert error.field == "chipsPerHost"  # noqa: PT017 - one of many in a loop
                else:
                    ours.add((name, topology, shape.chips_per_host))
    assert ours == published


def test_warnings_agree_with_the_marks_of_the_rows():
    for row in rows():
        shape = slice_shape(named(row), row["topology"], int(row["chips_per_host"]))
        assert shape.rule_only == ("rule-only" in row["source"]), row
        assert shape.in_ray_table == ("ray-rejects" not in row["source"]), row
        marks = sum(mark in row["source"] for mark in ("rule-only", "over-6144-chips", "ray-rejects"))
        assert len(shape.warnings) == marks, row


@pytest.mark.parametrize(
    ("generation", "topology", "chips", "hosts", "accelerator_type", "host_bounds", "chip_bounds", "wrap"),
    [  # the GKE TPU device plugin's unit test
        ("v4", "2x2x1", 4, 1, "v4-8", "1,1,1", "2,2,1", "false,false,false"),
        ("v5p", "2x2x2", 4, 2, "v5p-16", "1,1,2", "2,2,1", "false,false,false"),
        ("v5p", "2x4x4", 4, 8, "v5p-64", "1,2,4", "2,2,1", "false,false,false"),
        ("v4", "4x4x4", 4, 16, "v4-128", "2,2,4", "2,2,1", "true,true,true"),
        ("v6e", "1x1", 1, 1, "v6e-1", "1,1,1", "1,1,1", "false,false,false"),
        ("v5e", "2x4", 8, 1, "v5litepod-8", "1,1,1", "2,4,1", "false,false,false"),
        ("v6e", "2x4", 4, 2, "v6e-8", "1,2,1", "2,2,1", "false,false,false"),
        ("v6e", "4x4", 4, 4, "v6e-16", "2,2,1", "2,2,1", "false,false,false"),
        ("v6e", "8x16", 4, 32, "v6e-128", "4,8,1", "2,2,1", "false,true,false"),
        ("v5e", "16x16", 4, 64, "v5litepod-256", "8,8,1", "2,2,1", "true,true,false"),
        ("v7x", "2x2x2", 4, 2, "tpu7x-16", "1,1,2", "2,2,1", "false,false,false"),
        ("v7x", "4x4x4", 4, 16, "tpu7x-128", "2,2,4", "2,2,1", "true,true,true"),
    ],
)
def test_device_plugin_values(generation, topology, chips, hosts, accelerator_type, host_bounds, chip_bounds, wrap):
    shape = slice_shape(generation, topology, chips)
    assert (shape.hosts, shape.accelerator_type, shape.wrap) == (hosts, accelerator_type, wrap)
    assert (shape.host_bounds, shape.chips_per_host_bounds) == (host_bounds, chip_bounds)


def test_two_by_four_means_one_host_of_eight_unless_asked():
    assert slice_shape("v6e", "2x4").chips_per_host == 8
    assert "cloud.google.com/gke-accelerator-count" not in slice_shape("v6e", "2x4").node_selector
    assert slice_shape("v6e", "2x4", 4).node_selector["cloud.google.com/gke-accelerator-count"] == "4"


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips", "field", "phrase"),
    [
        ("v6e", "4x6", None, "topology", "v6e has no topology 4x6; nearest: 4x4 (16 chips), 4x8 (32 chips)"),
        ("v6e", "4x2", None, "topology", "GKE writes it 2x4"),
        ("v5p", "4x2x2", None, "topology", "GKE writes it 2x2x4"),
        ("v5p", "1x2x2", None, "topology", "GKE writes it 2x2x1"),
        ("v6e", "2x8", None, "topology", "nearest: 4x4 (16 chips), 4x8 (32 chips)"),
        ("v6e", "2x2x1", None, "topology", "have 2 numbers"),
        ("v5p", "4x4", None, "topology", "have 3 numbers"),
        ("v6e", "04x4", None, "topology", "is not a topology"),
        ("v6e", "\uff14x4", None, "topology", "is not a topology"),
        ("v6e", "-4x4", None, "topology", "is not a topology"),
        ("v6e", "", None, "topology", "is not a topology"),
        ("v6e", "9" * 5000, None, "topology", "is not a topology"),
        ("v6e", "9999x9999", None, "topology", "nearest: 16x16 (256 chips)"),
        ("v6e", "4x4", 8, "chipsPerHost", "no hosts of 8 chips; allowed: 4"),
        ("v6e", "2x4", 2, "chipsPerHost", "allowed: 8, 4"),
        ("trillium", "4x4", None, "accelerator", "'trillium' is written v6e here"),
        ("V6E", "4x4", None, "accelerator", "written v6e here"),
        ("v3", "2x2", None, "accelerator", "v3 is legacy"),
        ("tpu7", "2x2x1", None, "accelerator", "tpu7 is unknown to the GKE device plugin"),
        ("\x1b[31mred", "4x4", None, "accelerator", "no TPU generation '\\x1b[31mred'"),
    ],
)
def test_what_does_not_exist_says_what_does(accelerator, topology, chips, field, phrase):
    with pytest.raises(ShapeError) as caught:
        slice_shape(accelerator, topology, chips)
    assert caught.value.field == field
    assert phrase in caught.value.message
    assert len(caught.value.message) < 300


@given(st.text(max_size=30), st.text(max_size=30), st.none() | st.integers())
def test_any_text_gives_a_shape_error_only(accelerator, topology, chips):
    for generation in (accelerator, "v6e", "v5p"):
        with pytest.raises(ShapeError):
            slice_shape(generation, "x" + topology, chips)


@pytest.mark.parametrize("slices", [0, -1, 257, 10_000, pytest.param(10**5000, id="huge")])
def test_slices_out_of_range(slices):
    with pytest.raises(ShapeError, match="1 to 256"):
        check_slices(slice_shape("v6e", "4x4"), slices)


def test_several_slices_need_several_hosts_each():
    check_slices(slice_shape("v6e", "2x4", 4), 256)
    with pytest.raises(ShapeError, match="multi-host node pools only"):
        check_slices(slice_shape("v6e", "2x4"), 2)


def test_names_lead_somewhere():
    assert set(ALIASES.values()) <= set(GENERATIONS)
    assert not set(REFUSED) & (set(ALIASES) | set(GENERATIONS))
