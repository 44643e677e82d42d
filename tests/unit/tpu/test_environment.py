import subprocess
import sys

import pytest

from torchtpu_operator.tpu.environment import (
    IDENTITY_VARIABLES,
    EnvironmentTooLarge,
    address_list_too_large,
    pod_environment,
    torch_tpu_environment,
    torch_xla_environment,
)
from torchtpu_operator.tpu.ranks import position
from torchtpu_operator.tpu.slices import slice_shape

HOSTS = ["h0", "h1"]


def test_torch_tpu_on_two_hosts():
    shape = slice_shape("v6e", "2x4", 4)
    env = torch_tpu_environment(shape, position(shape, 1, 6), 1, HOSTS, "h0")
    assert env["TORCH_TPU_TOPOLOGY"] == "2,4,1"
    addresses = env["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")
    assert addresses[6] == "h1:8473"  # torch_tpu takes entry RANK mod n for this process
    assert len(addresses) == 8
    assert env["TORCH_TPU_DEVICES_PER_HOST"] == "4"
    assert "TPU_VISIBLE_DEVICES" not in env
    assert not any(name.startswith("MEGASCALE") for name in env)


def test_torch_xla_on_two_hosts():
    shape = slice_shape("v5p", "2x2x2")
    env = torch_xla_environment(shape, position(shape, 1, 6), 1, HOSTS, "h0")
    assert env["TPU_PROCESS_BOUNDS"] == "2,2,2"
    assert env["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,1,1"
    assert (env["CLOUD_TPU_TASK_ID"], env["TPU_VISIBLE_CHIPS"], env["TPU_PROCESS_PORT"]) == ("6", "2", "8478")
    assert env["TPU_PROCESS_ADDRESSES"].split(",")[6] == "h1:8478"
    assert (env["TPU_HOST_BOUNDS"], env["TPU_CHIPS_PER_HOST_BOUNDS"]) == ("1,1,2", "2,2,1")


def test_torch_xla_on_one_host_talks_to_itself():
    shape = slice_shape("v6e", "2x2")
    env = torch_xla_environment(shape, position(shape, 1, 1), 1, ["10.0.0.1"], "10.0.0.1")
    assert env["TPU_PROCESS_ADDRESSES"] == "localhost:8476,localhost:8477,localhost:8478,localhost:8479"
    assert env["TPU_PROCESS_BOUNDS"] == "2,2,1"


def test_v7x_has_two_devices_a_chip():
    shape = slice_shape("v7x", "2x2x1")
    env = torch_tpu_environment(shape, position(shape, 1, 7), 1, ["h0"], "h0")
    assert env["TORCH_TPU_TOPOLOGY"] == "2,2,1,2"
    assert env["TORCH_TPU_SLICEBUILDER_ADDRESSES"].endswith("h0:8478")
    assert pod_environment(shape)["RAY_TPU_RESOURCE_PER_CHIP"] == "2"


def test_several_slices():
    shape = slice_shape("v6e", "2x4", 4)
    at = position(shape, 2, 8 + 5)
    tpu = torch_tpu_environment(shape, at, 2, ["h2", "h3"], "h0")
    xla = torch_xla_environment(shape, at, 2, ["h2", "h3"], "h0")
    for env in (tpu, xla):
        assert (env["MEGASCALE_NUM_SLICES"], env["MEGASCALE_SLICE_ID"]) == ("2", "1")
    assert tpu["MEGASCALE_COORDINATOR_ADDRESS"] == "h0:8080"
    assert "MEGASCALE_PORT" not in tpu
    assert (xla["MEGASCALE_COORDINATOR_ADDRESS"], xla["MEGASCALE_PORT"]) == ("h0:8081", "8082")
    assert "h0:" not in tpu["TORCH_TPU_SLICEBUILDER_ADDRESSES"]


def test_all_that_identifies_a_process_is_cleared_first():
    shape = slice_shape("v6e", "2x4", 4)
    at = position(shape, 2, 0)
    for build in (torch_tpu_environment, torch_xla_environment):
        assert set(build(shape, at, 2, HOSTS, "h0")) <= IDENTITY_VARIABLES
    tuning = {"LIBTPU_INIT_ARGS", "XLA_FLAGS", "TPU_PREMAPPED_BUFFER_SIZE", "TPU_LOG_DIR", "TPU_LIBRARY_PATH"}
    assert not tuning & IDENTITY_VARIABLES


def test_an_address_list_too_long_to_start_a_program_with():
    shape = slice_shape("v5p", "16x20x28")
    hosts = [f"10.244.{100 + i // 200}.{i % 200 + 50}" for i in range(shape.hosts)]
    assert address_list_too_large(shape)
    with pytest.raises(EnvironmentTooLarge, match="TORCH_TPU_SLICEBUILDER_ADDRESSES"):
        torch_tpu_environment(shape, position(shape, 1, 0), 1, hosts, hosts[0])
    assert not address_list_too_large(slice_shape("v5p", "16x16x24"))


def test_a_string_of_exactly_the_limit_cannot_be_started_with_and_ours_are_shorter():
    assert subprocess.run(["true"], env={"A": "x" * (128 * 1024 - 3)}, check=False).returncode == 0
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["true"], env={"A": "x" * (128 * 1024 - 2)}, check=False)


def test_the_package_is_standard_library_only():
    code = (
        "import sys, torchtpu_operator.tpu.environment; "
        "sys.exit(len({m.split('.')[0] for m in sys.modules} & {'ray', 'torch', 'pydantic', 'yaml', 'rich', 'numpy'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
