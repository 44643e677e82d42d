import subprocess
import sys
from dataclasses import replace

import pytest

from torchtpu_operator.contract.job import JobSpec
from torchtpu_operator.runtime.plan import child_environment, rank_table
from torchtpu_operator.tpu.environment import IDENTITY_VARIABLES

SPEC = JobSpec("j", "ns", "uid", 2, "TorchTPU", "TPU", "v6e", "4x4", 4, 2, ("python", "t.py"))
HOSTS = [[f"10.0.{s}.{h}" for h in range(4)] for s in range(2)]


def test_ranks_are_slice_major_with_torchruns_meaning():
    table = rank_table(SPEC, HOSTS)
    assert len(table) == 32
    plan = table[21]
    assert (plan.position.slice_id, plan.position.host, plan.position.device, plan.address) == (1, 1, 1, "10.0.1.1")
    expected = {
        "RANK": "21",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "32",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "5",
        "GROUP_WORLD_SIZE": "8",
        "MASTER_ADDR": "10.0.0.0",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "uid-2",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TTJ_ATTEMPT": "2",
        "TTJ_RUN_ID": "uid",
        "TTJ_SLICE_ID": "1",
        "TTJ_NUM_SLICES": "2",
        "TTJ_DEVICE": "TPU",
        "MEGASCALE_SLICE_ID": "1",
        "MEGASCALE_NUM_SLICES": "2",
        "TORCH_TPU_TOPOLOGY": "4,4,1",
        "TPU_WORKER_ID": "1",
    }
    assert {name: plan.environment.get(name) for name in expected} == expected
    addresses = plan.environment["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")
    assert len(addresses) == 16
    assert addresses[plan.position.rank_in_slice].startswith("10.0.1.1:")


def test_torch_xla_and_cpu():
    xla = rank_table(replace(SPEC, framework="TorchXLA"), HOSTS)[0].environment
    assert xla["PJRT_DEVICE"] == "TPU"
    cpu = rank_table(replace(SPEC, device="CPU"), HOSTS)[0].environment
    assert cpu["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert not [name for name in cpu if name.startswith(("TPU_", "TORCH_TPU", "PJRT", "MEGASCALE"))]
    alone = JobSpec("j", "default", "u", 1, "TorchXLA", "CPU", "v6e", "1x1", 1, 1, ("python",))
    assert rank_table(alone, [["10.0.0.1"]])[0].environment["PJRT_DEVICE"] == "CPU"  # else it would look for a chip


def test_wrong_number_of_hosts_is_an_error():
    for hosts in (HOSTS[:1], [HOSTS[0], HOSTS[1][:3]]):
        with pytest.raises(ValueError, match="2 slices of 4 hosts wanted"):
            rank_table(SPEC, hosts)


def test_a_ranks_environment_is_the_containers_without_identity():
    planned = rank_table(replace(SPEC, device="CPU"), HOSTS)[0].environment
    stale = dict.fromkeys(IDENTITY_VARIABLES, "stale")
    secret = {"TTJ_JOB": "{}", "TTJ_RESULT_KEY": "k", "RAY_AUTH_TOKEN": "t", "RAY_ADDRESS": "a", "RAY_JOB_ID": "1"}
    tuning = {"LIBTPU_INIT_ARGS": "--x", "XLA_FLAGS": "--y", "TPU_LOG_DIR": "/l", "PATH": "/bin", "LD_PRELOAD": "t.so"}
    environment = child_environment(stale | secret | tuning, planned)
    assert "stale" not in environment.values()
    assert not secret.keys() & environment.keys()
    assert tuning.items() <= environment.items()
    assert planned.items() <= environment.items()
    assert environment["OMP_NUM_THREADS"] == "1"
    assert child_environment({"OMP_NUM_THREADS": "7"}, planned)["OMP_NUM_THREADS"] == "7"
    single = planned | {"LOCAL_WORLD_SIZE": "1"}
    assert "OMP_NUM_THREADS" not in child_environment({}, single)


def test_the_pure_parts_and_the_launcher_import_no_ray_and_no_torch():
    modules = (
        "plan",
        "gather",
        "gang",
        "stream",
        "markers",
        "output",
        "launcher",
        "install",
        "agent",
        "driver",
        "submit",
    )
    script = (
        "import sys, importlib\nsys.path.insert(0, 'operator')\n"
        f"for m in {modules}: importlib.import_module('torchtpu_operator.runtime.' + m)\n"
        "import ttj\nassert not {'ray', 'torch', 'pydantic', 'yaml'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
