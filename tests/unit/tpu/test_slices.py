"""The catalogue against the table of shapes gathered from GKE's tools, both ways; and what it says when asked wrong."""

import contextlib
import csv
import re
import subprocess
import sys
import time
from math import prod
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchtpu_operator.tpu.generations import ALIASES, GENERATIONS, REFUSED
from torchtpu_operator.tpu.slices import ShapeError, SliceShape, check_slices, slice_shape, topologies

TABLE = Path(__file__).parents[2] / "data" / "tpu-slices.csv"
NAMES = {"tpu7x": "v7x"}  # the table's generation -> the API's
MARKS = {"rule-only": "on no published list", "over-6144-chips": "largest single job", "ray-rejects": "Ray 2.60 has no"}


def rows() -> list[dict[str, str]]:
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def shapes() -> list[SliceShape]:
    """Every shape the catalogue takes, hosts of either kind."""
    found = []
    for name, generation in GENERATIONS.items():
        for topology in topologies(generation):
            for chips in (1, 4, 8):
                with contextlib.suppress(ShapeError):
                    found.append(slice_shape(name, topology, chips))
    return found


def as_row(shape: SliceShape) -> tuple[object, ...]:
    return (
        shape.generation.name,
        shape.generation.accelerator_label,
        shape.machine_type.name,
        shape.topology,
        shape.chips,
        shape.hosts,
        shape.chips_per_host,
        shape.multi_host,
        shape.ray_accelerator_type,
        shape.ray_pod_type,
    )


def test_catalogue_and_table_hold_the_same_shapes() -> None:
    table = {
        (
            NAMES.get(row["generation"], row["generation"]),
            row["accelerator_label"],
            row["machine_type"],
            row["topology"],
            int(row["chips"]),
            int(row["hosts"]),
            int(row["chips_per_host"]),
            row["multi_host"] == "true",
            row["ray_accelerator_type"],
            row["ray_pod_type"],
        )
        for row in rows()
    }
    catalogue = {as_row(shape) for shape in shapes()}
    assert catalogue - table == set()
    assert table - catalogue == set()
    assert len(table) == len(rows()) == len(shapes()) == 1051


def test_warnings_agree_with_the_marks() -> None:
    for row in rows():
        name = NAMES.get(row["generation"], row["generation"])
        warnings = slice_shape(name, row["topology"], int(row["chips_per_host"])).warnings
        marked = [text for mark, text in MARKS.items() if mark in row["source"]]
        assert len(warnings) == len(marked), (row, warnings)
        for text in marked:
            assert any(text in warning for warning in warnings), (row, warnings)


def test_warning_names_the_usual_shape_of_that_size() -> None:
    assert "the usual shape of 256 chips is 4x8x8" in slice_shape("v5p", "4x4x16").warnings[0]


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips", "hosts"),
    [
        ("v6e", "2x4", 8, 1),
        ("v5e", "2x4", 8, 1),
        ("v6e", "4x4", 4, 4),
        ("v6e", "1x1", 1, 1),
        ("v7x", "1x1x1", 1, 1),
        ("v4", "2x2x1", 4, 1),
        ("v5p", "16x20x28", 4, 2240),
    ],
)
def test_default_chips_per_host(accelerator: str, topology: str, chips: int, hosts: int) -> None:
    shape = slice_shape(accelerator, topology)
    assert (shape.chips_per_host, shape.hosts) == (chips, hosts)
    assert shape.machine_type.chips == chips


def test_node_selector_is_two_labels_but_for_the_ambiguous_shape() -> None:
    for shape in shapes():
        expected = {
            "cloud.google.com/gke-tpu-accelerator": shape.generation.accelerator_label,
            "cloud.google.com/gke-tpu-topology": shape.topology,
        }
        if (shape.topology, shape.chips_per_host) == ("2x4", 4):
            expected["cloud.google.com/gke-accelerator-count"] = "4"
        assert shape.node_selector == expected


def test_devices_and_names() -> None:
    v7x = slice_shape("v7x", "4x4x4")
    assert (v7x.devices, v7x.devices_per_host) == (128, 8)
    assert (v7x.accelerator_type, v7x.ray_pod_type) == ("tpu7x-128", "v7x-128")
    v5p = slice_shape("v5p", "4x4x4")
    assert (v5p.devices, v5p.accelerator_type, v5p.ray_pod_type) == (64, "v5p-128", "v5p-128")
    assert slice_shape("v5e", "4x4").accelerator_type == "v5litepod-16"


# topology, chips per host, GKE's bounds and wrap (t or f): the device plugin's own unit test, and formulas for 8x8.
BOUNDS = """
v4,v5p 2x2x1 4 1,1,1 2,2,1 fff
v4,v5p 2x2x2 4 1,1,2 2,2,1 fff
v4,v5p 2x2x4 4 1,1,4 2,2,1 fff
v4,v5p 2x4x4 4 1,2,4 2,2,1 fff
v4,v5p,v7x 4x4x4 4 2,2,4 2,2,1 ttt
v5e,v6e 1x1 1 1,1,1 1,1,1 fff
v5e,v6e 2x2 4 1,1,1 2,2,1 fff
v5e,v6e 2x4 8 1,1,1 2,4,1 fff
v5e,v6e 2x4 4 1,2,1 2,2,1 fff
v5e,v6e 4x4 4 2,2,1 2,2,1 fff
v5e,v6e 4x8 4 2,4,1 2,2,1 fff
v5e,v6e 8x8 4 4,4,1 2,2,1 fff
v5e,v6e 8x16 4 4,8,1 2,2,1 ftf
v5e,v6e 16x16 4 8,8,1 2,2,1 ttf
v7x 1x1x1 1 1,1,1 1,1,1 fff
v7x 2x2x1 4 1,1,1 2,2,1 fff
v7x 2x2x2 4 1,1,2 2,2,1 fff
"""


@pytest.mark.parametrize("line", BOUNDS.strip().splitlines())
def test_bounds(line: str) -> None:
    names, topology, chips, hosts, per_host, wrap = line.split()
    for name in names.split(","):
        shape = slice_shape(name, topology, int(chips))
        assert (shape.host_bounds, shape.chips_per_host_bounds) == (hosts, per_host)
        assert shape.wrap == ",".join({"t": "true", "f": "false"}[letter] for letter in wrap)


def test_host_grids_tile_every_shape() -> None:
    for shape in shapes():
        assert prod(shape.hosts_grid) == shape.hosts
        assert tuple(h * c for h, c in zip(shape.hosts_grid, shape.host_grid, strict=True)) == shape.grid


def refusal(accelerator: str, topology: str, chips_per_host: int | None = None) -> ShapeError:
    with pytest.raises(ShapeError) as caught:
        slice_shape(accelerator, topology, chips_per_host)
    return caught.value


@pytest.mark.parametrize(
    ("accelerator", "topology", "says"),
    [
        ("v6e", "4x6", "v6e has no topology 4x6; nearest: 4x4 (16 chips), 4x8 (32 chips)"),
        ("v6e", "2x8", "nearest: 4x4 (16 chips)"),
        ("v6e", "4x2", "so write 2x4"),
        ("v5p", "4x2x2", "so write 2x2x4"),
        ("v5p", "1x2x2", "so write 2x2x1"),
        ("v4", "16x8x4", "so write 4x8x16"),
        ("v5p", "4x4x6", "nearest: 4x4x4 (64 chips), 4x4x8 (128 chips)"),
        ("v5p", "4x4x260", "multiples of 4 up to 256, at most 8960 chips"),
        ("v5p", "64x64x64", "nearest: 16x20x28 (8960 chips)"),
        ("v4", "1x1x1", "nearest: 2x2x1 (4 chips)"),
        ("v6e", "4x4x1", "v6e has topologies of 2 dimensions, not 4x4x1; nearest: 4x4 (16 chips)"),
        ("v5p", "4x4", "v5p has topologies of 3 dimensions, not 4x4; nearest: 2x2x4 (16 chips)"),
        ("v6e", "4", "of 2 dimensions, not 4"),
        ("v6e", "04x4", "nearest: 4x4 (16 chips)"),
        ("v6e", "\uff14x4", "'\\uff14x4' is not a topology: write plain numbers from 1 joined by x; nearest: 4x4"),
        ("v6e", "-4x4", "'-4x4' is not a topology"),
        ("v6e", "4X4", "nearest: 4x4"),
        ("v6e", "4x4\n", "'4x4\\n' is not a topology"),
        ("v6e", " 4x4", "is not a topology"),
        ("v6e", "", "'' is not a topology"),
        ("v6e", "0x4", "is not a topology"),
        ("v6e", "4x", "is not a topology"),
        ("v6e", "9" * 5000, "... (5000 characters) is not a topology"),
    ],
)
def test_topology_refused(accelerator: str, topology: str, says: str) -> None:
    error = refusal(accelerator, topology)
    assert error.field == "topology"
    assert says in error.message == str(error)


@pytest.mark.parametrize(
    "kind", [*REFUSED, "v3-8", "tpu7x", "trillium", "V6E", "v6e-16", "v9", "", "x" * 5000, "\x1b[2J"]
)
def test_accelerator_refused(kind: str) -> None:
    error = refusal(kind, "4x4")
    assert error.field == "accelerator"
    assert error.message.endswith("allowed: v4, v5e, v5p, v6e, v7x")
    assert error.message.isprintable()


def test_accelerator_refused_with_the_reason_or_the_name_meant() -> None:
    assert "device plugin" in refusal("tpu-v5-lite-device", "2x2").message
    assert "legacy" in refusal("v3-8", "2x2").message
    assert "is written v7x" in refusal("Ironwood", "2x2x1").message
    assert "is written v6e" in refusal("v6e-16", "4x4").message
    for alias, name in ALIASES.items():
        assert f"is written {name}" in refusal(alias, "4x4").message


def test_no_kind_is_both_taken_and_refused() -> None:
    assert not REFUSED.keys() & (GENERATIONS.keys() | ALIASES.keys())
    assert set(ALIASES.values()) <= GENERATIONS.keys()


@pytest.mark.parametrize(
    ("topology", "chips", "says"),
    [
        ("2x4", 2, "has no hosts of 2 chips; allowed: 8 or 4"),
        ("4x4", 8, "has no hosts of 8 chips; allowed: 4; 8-chip hosts never join others"),
        ("1x1", 4, "allowed: 1"),
        ("4x4", 0, "has no hosts of 0 chips"),
        ("4x4", -(10**1000), "under -999999999"),
        ("4x4", 10**1000, "over 999999999"),
    ],
)
def test_chips_per_host_refused(topology: str, chips: int, says: str) -> None:
    error = refusal("v6e", topology, chips)
    assert error.field == "chipsPerHost"
    assert says in error.message


def test_slices() -> None:
    many = slice_shape("v6e", "4x4")
    for number in (1, 2, 256):
        check_slices(many, number)
    check_slices(slice_shape("v6e", "2x4", 4), 2)
    for shape in (slice_shape("v6e", "2x4"), slice_shape("v7x", "1x1x1")):
        check_slices(shape, 1)


@pytest.mark.parametrize(
    ("shape", "slices", "says"),
    [
        (("v6e", "4x4"), 0, "slices is 0; allowed: 1 to 256"),
        (("v6e", "4x4"), 257, "slices is 257; allowed: 1 to 256"),
        (("v6e", "4x4"), -1, "allowed: 1 to 256"),
        (("v6e", "4x4"), 10**1000, "allowed: 1 to 256"),
        (("v6e", "2x4"), 2, "nearest: slices 1, or 2x4 with chipsPerHost 4"),
        (("v6e", "2x2"), 2, "slices of several hosts only, and this one is a single host of 4 chips"),
        (("v7x", "1x1x1"), 2, "nearest: slices 1, or 2x2x2"),
    ],
)
def test_slices_refused(shape: tuple[str, str], slices: int, says: str) -> None:
    with pytest.raises(ShapeError) as caught:
        check_slices(slice_shape(*shape), slices)
    assert caught.value.field == "slices"
    assert says in caught.value.message


DIGITS = st.text(alphabet="0123456789x-+ .eX\uff14\u00b2\u0663", max_size=60)
NUMBERS = st.lists(st.integers(-5, 10**6), max_size=12).map(lambda dims: "x".join(map(str, dims)))


@given(st.sampled_from([*GENERATIONS]) | st.text(), st.text() | DIGITS | NUMBERS, st.none() | st.integers())
@example("v5p", "9999x9999x9999", None)
@example("v5p", "9x" * 100_000, None)
@example("v5p", "\uff14" * 40, None)
@example("v6e", "\ud800", None)
def test_any_text_is_a_legal_shape_or_a_short_refusal(accelerator: str, topology: str, chips: int | None) -> None:
    message = ""
    try:
        shape = slice_shape(accelerator, topology, chips)
    except ShapeError as error:
        message = error.message
    if message:
        assert len(message) < 500
        assert message.isprintable()
    else:
        assert shape.topology == topology in set(topologies(GENERATIONS[accelerator]))


@given(st.sampled_from([*GENERATIONS]), st.lists(st.integers(1, 300), min_size=2, max_size=3))
def test_what_a_refusal_offers_is_legal(accelerator: str, dims: list[int]) -> None:
    legal = set(topologies(GENERATIONS[accelerator]))
    asked = "x".join(map(str, dims))
    if asked not in legal:
        offered = re.findall(r"([0-9x]+) \(\d+ chip|so write ([0-9x]+)", refusal(accelerator, asked).message)
        assert offered
        assert {one or other for one, other in offered} <= legal


def test_wrong_shapes_are_refused_fast() -> None:
    refusal("v5p", "5x5x5")  # makes the table
    start = time.process_time()
    for edge in range(1, 101):
        refusal("v5p", f"3x3x{edge}")
    refusal("v5p", "9" * 10**7)
    refusal("v5p", "4x4x4", 10**100_000)
    assert time.process_time() - start < 1


def test_the_package_is_standard_library_only() -> None:
    code = (
        "import sys; before = {m.partition('.')[0] for m in sys.modules}\n"
        "import torchtpu_operator.tpu.environment\n"
        "known = set(sys.stdlib_module_names) | {'torchtpu_operator', '__main__', '__mp_main__'}\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} - known - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
