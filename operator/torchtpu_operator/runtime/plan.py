"""The rank table: which rank runs on which device, and what its environment gains. Pure; imports no Ray.

`ttj run --dry-run` and the driver use the same function.
"""

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchtpu_operator.contract import names, ports
from torchtpu_operator.contract.job import JobSpec
from torchtpu_operator.tpu import ranks
from torchtpu_operator.tpu.environment import IDENTITY_VARIABLES, torch_tpu_environment, torch_xla_environment
from torchtpu_operator.tpu.ranks import RankPosition
from torchtpu_operator.tpu.slices import SliceShape, slice_shape

ENV_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

# Ray is not what a rank runs in: its variables (token, address, job) stay out, as do those that Ray's worker processes
# gain. The rest of the container's environment is the user's.
NOT_INHERITED = frozenset({names.ENV_JOB, names.ENV_RESULT_KEY, names.ENV_FILES, names.ENV_TERMINATION_LOG})
NOT_INHERITED_PREFIX = "RAY_"


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One rank: where it runs and what its environment gains over the container's."""

    position: RankPosition
    address: str
    environment: dict[str, str]


def shape_of(spec: JobSpec) -> SliceShape:
    """Shape of the job's slices. Raises ShapeError."""
    return slice_shape(spec.accelerator, spec.topology, spec.chips_per_host)


def rank_table(
    spec: JobSpec, hosts: Sequence[Sequence[str]], master_port: int = ports.MASTER, run_dir: str = names.RUN_PATH
) -> list[RankPlan]:
    """All ranks in order. `hosts`: for each slice, in slice order, its hosts' addresses in worker-id order.

    Raises ShapeError, EnvironmentTooLarge, or ValueError if `hosts` is not the job's number of slices and hosts.
    """
    shape = shape_of(spec)
    if len(hosts) != spec.slices or any(len(addresses) != shape.hosts for addresses in hosts):
        got = [len(addresses) for addresses in hosts]
        raise ValueError(f"{spec.slices} slices of {shape.hosts} hosts wanted, got slices of {got} hosts")
    plans = []
    for position in ranks.positions(shape, spec.slices):
        address = hosts[position.slice_id][position.host]
        environment = _torchrun(spec, shape, position, hosts[0][0], master_port, run_dir)
        environment |= _job(spec, position, run_dir)
        environment |= _device(spec, shape, position, hosts)
        plans.append(RankPlan(position, address, environment))
    return plans


def rank_file(run_dir: str, rank: int, suffix: str) -> str:
    """Path of a rank's `log`, `error.json` or `report.json` on its host."""
    return os.path.join(run_dir, f"rank-{rank}.{suffix}")


def _torchrun(
    spec: JobSpec, shape: SliceShape, position: RankPosition, master: str, port: int, run_dir: str
) -> dict[str, str]:
    """What torchrun's agent sets (torch 2.13, elastic/agent/server/local_elastic_agent.py); one role, no restarts.

    TORCHELASTIC_USE_AGENT_STORE is False because no agent holds a store: rank 0 opens it at MASTER_PORT.
    """
    world = str(ranks.world_size(shape, spec.slices))
    return {
        "RANK": str(position.rank),
        "LOCAL_RANK": str(position.device),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(shape.devices_per_host),
        "GROUP_RANK": str(position.node_rank),
        "GROUP_WORLD_SIZE": str(spec.slices * shape.hosts),
        "ROLE_RANK": str(position.rank),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": master,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": f"{spec.uid}-{spec.attempt}",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        ENV_ERROR_FILE: rank_file(run_dir, position.rank, "error.json"),
    }


def _job(spec: JobSpec, position: RankPosition, run_dir: str) -> dict[str, str]:
    return {
        names.ENV_JOB_NAME: spec.name,
        names.ENV_JOB_NAMESPACE: spec.namespace,
        names.ENV_ATTEMPT: str(spec.attempt),
        names.ENV_RESTART: "0",
        names.ENV_RUN_ID: spec.uid,
        names.ENV_SLICE_ID: str(position.slice_id),
        names.ENV_NUM_SLICES: str(spec.slices),
        names.ENV_DEVICE: spec.device,
        names.ENV_FRAMEWORK: spec.framework,
        names.ENV_REPORT_FILE: rank_file(run_dir, position.rank, "report.json"),
    }


def _device(spec: JobSpec, shape: SliceShape, position: RankPosition, hosts: Sequence[Sequence[str]]) -> dict[str, str]:
    if spec.device == "CPU":
        # Installed torch_tpu or torch_xla backends would look for chips when torch is imported.
        off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        return off | ({"PJRT_DEVICE": "CPU"} if spec.framework == "TorchXLA" else {})
    make = torch_tpu_environment if spec.framework == "TorchTPU" else torch_xla_environment
    return make(shape, position, spec.slices, hosts[position.slice_id], hosts[0][0])


def child_environment(container: Mapping[str, str], planned: Mapping[str, str]) -> dict[str, str]:
    """A rank's whole environment from its container's and its plan's.

    Where the user says nothing: OMP_NUM_THREADS=1 for several ranks on a host and TORCH_NCCL_ASYNC_ERROR_HANDLING=1, as
    torchrun has it, and PYTHONUNBUFFERED=1, because the log is a pipe and a killed rank's last lines matter most.
    """
    environment = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "PYTHONUNBUFFERED": "1"}
    if planned["LOCAL_WORLD_SIZE"] != "1":
        environment["OMP_NUM_THREADS"] = "1"
    for name, value in container.items():
        if name not in IDENTITY_VARIABLES | NOT_INHERITED and not name.startswith(NOT_INHERITED_PREFIX):
            environment[name] = value
    return environment | dict(planned)
