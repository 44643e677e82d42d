"""Environments against values observed of torch_tpu 0.2.0, torch_xla 2.9.0 and GKE's plugin, and told a second time."""

import subprocess
import sys
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtpu_operator.contract import ports
from torchtpu_operator.tpu.environment import (
    IDENTITY_VARIABLES,
    EnvironmentTooLarge,
    address_list_too_large,
    pod_environment,
    torch_tpu_environment,
    torch_xla_environment,
)
from torchtpu_operator.tpu.generations import GENERATIONS
from torchtpu_operator.tpu.ranks import position, positions, world_size
from torchtpu_operator.tpu.slices import SliceShape, slice_shape, topologies

SMALL = [
    slice_shape(name, t) for name, g in GENERATIONS.items() for t in topologies(g) if slice_shape(name, t).hosts <= 64
]
SMALL += [slice_shape(name, "2x4", 4) for name in ("v5e", "v6e")]
TUNING = """
TPU_PREMAPPED_BUFFER_SIZE TPU_LOG_DIR TPU_LIBRARY_PATH TPU_RUNTIME_METRICS_PORTS TPU_STDERR_LOG_LEVEL TPU_MIN_LOG_LEVEL
LIBTPU_INIT_ARGS XLA_FLAGS TORCH_TPU_TIER2_COMPILATION_CACHE TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT
TORCH_TPU_DEFER_AND_FUSE TORCH_TPU_LAUNCH_BLOCKING TORCH_TPU_ENABLE_DEBUG_CHECKS TORCH_TPU_SPMD_HANDSHAKE_STAGE
TORCH_TPU_PROFILER_OUTPUT_DIR TORCH_TPU_XPROF_SESSION_ID TORCH_TPU_ALLOW_LEGACY_DEVICE_APIS
TORCH_TPU_INTERNAL_HANDSHAKE_PORT TORCH_TPU_INTERNAL_XLA_OPTIONS TORCH_DEVICE_BACKEND_AUTOLOAD MEGASCALE_TRANSPORT_TYPE
MEGASCALE_AUTHENTICATION VBAR_CONTROL_SERVICE_URL PATH HOME PYTHONPATH OMP_NUM_THREADS XLA_USE_BF16 PJRT_ALLOCATOR
"""


def hosts_of(shape: SliceShape, slice_id: int) -> list[str]:
    return [f"10.0.{slice_id}.{host}" for host in range(shape.hosts)]


def test_torch_xla_over_two_hosts() -> None:
    shape = slice_shape("v5p", "2x2x2")
    assert torch_xla_environment(shape, position(shape, 1, 6), 1, ["h0", "h1"], "h0") == {
        "PJRT_DEVICE": "TPU",
        "PJRT_LOCAL_PROCESS_RANK": "2",
        "PJRT_LOCAL_PROCESS_COUNT": "4",
        "TPU_PROCESS_BOUNDS": "2,2,2",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_VISIBLE_CHIPS": "2",
        "CLOUD_TPU_TASK_ID": "6",
        "TPU_PROCESS_ADDRESSES": "h0:8476,h0:8477,h0:8478,h0:8479,h1:8476,h1:8477,h1:8478,h1:8479",
        "TPU_PROCESS_PORT": "8478",
        "TPU_WORKER_ID": "1",
        "TPU_WORKER_HOSTNAMES": "h0,h1",
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_ACCELERATOR_TYPE": "v5p-16",
        "TPU_TOPOLOGY": "2x2x2",
        "TPU_TOPOLOGY_WRAP": "false,false,false",
        "TPU_HOST_BOUNDS": "1,1,2",
        "HOST_BOUNDS": "1,1,2",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "CHIPS_PER_HOST_BOUNDS": "2,2,1",
    }


def test_torch_xla_on_one_host() -> None:
    shape = slice_shape("v6e", "2x4")
    found = torch_xla_environment(shape, position(shape, 1, 5), 1, ["10.0.0.7"], "10.0.0.7")
    assert found["TPU_PROCESS_BOUNDS"] == "2,4,1"
    assert found["TPU_PROCESS_ADDRESSES"] == ",".join(f"localhost:{8476 + i}" for i in range(8))
    assert (found["CLOUD_TPU_TASK_ID"], found["TPU_PROCESS_PORT"]) == ("5", "8481")
    assert (found["TPU_WORKER_ID"], found["TPU_WORKER_HOSTNAMES"]) == ("0", "localhost")


def test_torch_tpu_over_two_hosts() -> None:
    shape = slice_shape("v6e", "2x4", 4)
    assert torch_tpu_environment(shape, position(shape, 1, 6), 1, ["h0", "h1"], "h0") == {
        "TORCH_TPU_TOPOLOGY": "2,4,1",
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": "h0:8471,h0:8472,h0:8473,h0:8474,h1:8471,h1:8472,h1:8473,h1:8474",
        "TORCH_TPU_DEVICES_PER_HOST": "4",
        "TPU_WORKER_ID": "1",
        "TPU_WORKER_HOSTNAMES": "h0,h1",
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_ACCELERATOR_TYPE": "v6e-8",
        "TPU_TOPOLOGY": "2x4",
        "TPU_TOPOLOGY_WRAP": "false,false,false",
        "TPU_HOST_BOUNDS": "1,2,1",
        "HOST_BOUNDS": "1,2,1",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "CHIPS_PER_HOST_BOUNDS": "2,2,1",
    }


def test_torch_tpu_on_one_chip() -> None:
    shape = slice_shape("v6e", "1x1")
    found = torch_tpu_environment(shape, position(shape, 1, 0), 1, ["10.0.0.7"], "10.0.0.7")
    assert found["TORCH_TPU_TOPOLOGY"] == "1,1,1"
    assert found["TORCH_TPU_SLICEBUILDER_ADDRESSES"] == "localhost:8471"


def test_v7x_has_a_process_per_device() -> None:
    shape = slice_shape("v7x", "2x2x2")
    where = position(shape, 1, 13)
    tpu = torch_tpu_environment(shape, where, 1, ["h0", "h1"], "h0")
    xla = torch_xla_environment(shape, where, 1, ["h0", "h1"], "h0")
    assert tpu["TORCH_TPU_TOPOLOGY"] == xla["TPU_PROCESS_BOUNDS"] == "2,2,2,2"
    assert xla["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,1,1"
    assert tpu["TORCH_TPU_DEVICES_PER_HOST"] == xla["PJRT_LOCAL_PROCESS_COUNT"] == "8"
    assert len(tpu["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")) == 16
    assert tpu["TPU_ACCELERATOR_TYPE"] == "tpu7x-16"
    assert (xla["TPU_VISIBLE_CHIPS"], xla["CLOUD_TPU_TASK_ID"]) == ("5", "13")


def test_several_slices() -> None:
    shape = slice_shape("v6e", "4x4")
    where = position(shape, 3, 16 + 6)  # slice 1, host 1, device 2
    tpu = torch_tpu_environment(shape, where, 3, hosts_of(shape, 1), "10.0.0.0")
    xla = torch_xla_environment(shape, where, 3, hosts_of(shape, 1), "10.0.0.0")
    for found in (tpu, xla):
        assert (found["MEGASCALE_NUM_SLICES"], found["MEGASCALE_SLICE_ID"]) == ("3", "1")
    assert (tpu["MEGASCALE_COORDINATOR_ADDRESS"], tpu["MEGASCALE_PORT"]) == ("10.0.0.0:8080", "8084")
    assert (xla["MEGASCALE_COORDINATOR_ADDRESS"], xla["MEGASCALE_PORT"]) == ("10.0.0.0:8081", "8083")
    assert tpu["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")[6] == "10.0.1.1:8473"
    assert xla["CLOUD_TPU_TASK_ID"] == "6"


@st.composite
def ranks(draw: st.DrawFn) -> tuple[SliceShape, int, int]:
    shape = draw(st.sampled_from(SMALL))
    slices = draw(st.integers(1, 4)) if shape.multi_host else 1
    return shape, slices, draw(st.integers(0, world_size(shape, slices) - 1))


def told_again(shape: SliceShape, slices: int, rank: int) -> tuple[dict[str, str], dict[str, str]]:
    """Both environments, from strings and the rank alone: no grid, no position, no helper of the catalogue."""
    two = shape.generation.name == "v7x"
    numbers = [*shape.topology.split("x"), "1"][:3]
    per_host = shape.chips_per_host * (2 if two else 1)
    in_slice = rank % (shape.chips * (2 if two else 1))
    local, slice_id = rank % per_host, rank // (shape.chips * (2 if two else 1))
    single = shape.chips == shape.chips_per_host
    names = ["localhost"] if single else hosts_of(shape, slice_id)
    every = [(name, device) for name in names for device in range(per_host)]
    common = {
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_TOPOLOGY": shape.topology,
        "TPU_WORKER_ID": str(in_slice // per_host),
        "TPU_WORKER_HOSTNAMES": ",".join(names),
    }
    process_grid = ",".join(numbers + ["2"] * two)
    tpu = common | {
        "TORCH_TPU_TOPOLOGY": process_grid,
        "TORCH_TPU_DEVICES_PER_HOST": str(per_host),
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": ",".join(f"{name}:{8471 + device}" for name, device in every),
    }
    xla = common | {
        "PJRT_DEVICE": "TPU",
        "PJRT_LOCAL_PROCESS_RANK": str(local),
        "PJRT_LOCAL_PROCESS_COUNT": str(per_host),
        "TPU_PROCESS_BOUNDS": process_grid,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_VISIBLE_CHIPS": str(local),
        "CLOUD_TPU_TASK_ID": str(in_slice),
        "TPU_PROCESS_PORT": str(8476 + local),
        "TPU_PROCESS_ADDRESSES": ",".join(f"{name}:{8476 + device}" for name, device in every),
    }
    if slices > 1:
        ids = {"MEGASCALE_NUM_SLICES": str(slices), "MEGASCALE_SLICE_ID": str(slice_id)}
        tpu |= ids | {"MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.0:8080", "MEGASCALE_PORT": str(8080 + 2 * local)}
        xla |= ids | {"MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.0:8081", "MEGASCALE_PORT": str(8081 + local)}
    return tpu, xla


SLICE_FACTS = {  # tested with the shapes
    "TPU_ACCELERATOR_TYPE",
    "TPU_TOPOLOGY_WRAP",
    *("TPU_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS", "HOST_BOUNDS", "CHIPS_PER_HOST_BOUNDS"),
}


@given(ranks())
def test_environments_told_a_second_time(place: tuple[SliceShape, int, int]) -> None:
    shape, slices, rank = place
    where = position(shape, slices, rank)
    given_hosts = hosts_of(shape, where.slice_id)
    for function, told in zip((torch_tpu_environment, torch_xla_environment), told_again(*place), strict=True):
        found = function(shape, where, slices, given_hosts, "10.0.0.0")
        assert found.keys() <= IDENTITY_VARIABLES
        assert found.keys() - told.keys() == SLICE_FACTS
        assert {name: found[name] for name in told} == told
        assert found["TPU_HOST_BOUNDS"] == found["HOST_BOUNDS"] == shape.host_bounds
        assert found["TPU_ACCELERATOR_TYPE"] == shape.accelerator_type


def test_own_address_is_the_one_at_the_own_rank() -> None:
    """torch_tpu takes the address at RANK mod their number for its own."""
    shape = slice_shape("v7x", "2x2x4")
    for where in positions(shape, 2):
        addresses = torch_tpu_environment(shape, where, 2, hosts_of(shape, where.slice_id), "c")[
            "TORCH_TPU_SLICEBUILDER_ADDRESSES"
        ].split(",")
        own = f"10.0.{where.slice_id}.{where.host}:{ports.SLICE_BUILDER_TORCH_TPU + where.device}"
        assert addresses[where.rank % len(addresses)] == own
        assert len(addresses) == shape.devices == max(Counter(addresses).values()) * len(set(addresses))


def test_ports_of_a_host_do_not_meet() -> None:
    devices = range(8)
    for builder, megascale, step in (
        (ports.SLICE_BUILDER_TORCH_TPU, ports.MEGASCALE_TORCH_TPU, 2),
        (ports.SLICE_BUILDER_TORCH_XLA, ports.MEGASCALE_TORCH_XLA, 1),
    ):
        taken = [builder + i for i in devices] + [megascale + step * i for i in devices]
        taken += [ports.RAY_GCS, ports.RAY_DASHBOARD, ports.RAY_CLIENT, ports.RAY_METRICS, ports.MASTER, 8353, 2112]
        taken += [8431 + i for i in devices]
        assert len(set(taken)) == len(taken)


def test_ipv6_addresses() -> None:
    shape = slice_shape("v6e", "2x4", 4)
    found = torch_tpu_environment(shape, position(shape, 2, 0), 2, ["fd00::1", "fd00::2"], "fd00::1")
    assert found["TORCH_TPU_SLICEBUILDER_ADDRESSES"].startswith("[fd00::1]:8471,")
    assert found["MEGASCALE_COORDINATOR_ADDRESS"] == "[fd00::1]:8080"
    assert found["TPU_WORKER_HOSTNAMES"] == "fd00::1,fd00::2"


def test_hosts_must_be_those_of_the_slice() -> None:
    shape = slice_shape("v6e", "4x4")
    with pytest.raises(ValueError, match="3 addresses for the 4 hosts of 4x4"):
        torch_tpu_environment(shape, position(shape, 1, 0), 1, ["a", "b", "c"], "a")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_limit_is_that_of_exec() -> None:
    shape, name = slice_shape("v6e", "4x4"), "MEGASCALE_COORDINATOR_ADDRESS"
    room = 128 * 1024 - 1 - len(f"{name}=:8080")  # one byte is the closing NUL
    found = torch_tpu_environment(shape, position(shape, 2, 0), 2, hosts_of(shape, 0), "a" * room)
    subprocess.run(["/bin/sh", "-c", ":"], env=found, check=True)
    with pytest.raises(OSError, match="too long"):
        subprocess.run(["/bin/sh", "-c", ":"], env={name: found[name] + "a"}, check=True)
    with pytest.raises(EnvironmentTooLarge, match=f"{name} would take 131072 bytes"):
        torch_tpu_environment(shape, position(shape, 2, 0), 2, hosts_of(shape, 0), "a" * room + "a")


@pytest.mark.parametrize(
    ("accelerator", "topology", "too_large"),
    [
        ("v5p", "16x16x24", False),
        ("v5p", "16x20x28", True),
        ("v7x", "8x16x24", False),
        ("v7x", "12x16x20", True),
        ("v4", "16x16x16", False),
        ("v6e", "2x4", False),
    ],
)
def test_address_list_too_large(accelerator: str, topology: str, too_large: bool) -> None:
    shape = slice_shape(accelerator, topology)
    assert address_list_too_large(shape) is too_large
    hosts = [f"10.100.{100 + host // 100}.{100 + host % 100}" for host in range(shape.hosts)]  # the longest there are
    for function in (torch_tpu_environment, torch_xla_environment):
        if too_large:
            with pytest.raises(EnvironmentTooLarge):
                function(shape, position(shape, 1, 0), 1, hosts, hosts[0])
        else:
            function(shape, position(shape, 1, 0), 1, hosts, hosts[0])


def test_a_large_slice_is_written_in_seconds() -> None:
    shape = slice_shape("v5p", "16x16x24")
    hosts = hosts_of(shape, 0)
    start = time.process_time()
    lists = {
        id(torch_tpu_environment(shape, where, 1, hosts, hosts[0])["TORCH_TPU_SLICEBUILDER_ADDRESSES"])
        for where in positions(shape, 1)
    }
    assert len(lists) == 1  # 6,144 ranks share one string
    assert time.process_time() - start < 5


def test_pod_environment() -> None:
    assert pod_environment(slice_shape("v6e", "4x4")) == {
        "TPU_TOPOLOGY": "4x4",
        "TPU_ACCELERATOR_TYPE": "v6e-16",
        "TPU_SKIP_MDS_QUERY": "true",
    }
    assert pod_environment(slice_shape("v7x", "2x2x1")) == {
        "TPU_TOPOLOGY": "2x2x1",
        "TPU_ACCELERATOR_TYPE": "tpu7x-8",
        "TPU_SKIP_MDS_QUERY": "true",
        "RAY_TPU_RESOURCE_PER_CHIP": "2",
    }


def test_tuning_is_the_users() -> None:
    assert not IDENTITY_VARIABLES & set(TUNING.split())


def test_identity_covers_torchrun_torch_tpu_and_the_pod() -> None:
    torchrun = (
        "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME"
    )
    torchrun += " MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS"
    torchrun += " TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE"
    overwritten = "CLOUD_TPU_TASK_ID TPU_VISIBLE_DEVICES TPU_VISIBLE_CHIPS TPU_HOST_BOUNDS TPU_PROCESS_BOUNDS"
    overwritten += " TPU_CHIPS_PER_HOST_BOUNDS TPU_CHIPS_PER_PROCESS_BOUNDS TPU_PROCESS_ADDRESSES TPU_PROCESS_PORT"
    overwritten += " MEGASCALE_PORT MEGASCALE_DEBUG_PORT"
    pod = "TPU_WORKER_ID TPU_WORKER_HOSTNAMES TPU_NAME MEGASCALE_NUM_SLICES MEGASCALE_SLICE_ID JOB_COMPLETION_INDEX"
    assert {*torchrun.split(), *overwritten.split(), *pod.split()} <= IDENTITY_VARIABLES
    assert pod_environment(slice_shape("v7x", "2x2x1")).keys() <= IDENTITY_VARIABLES
