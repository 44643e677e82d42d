"""The examples, run as their readers run them; and the training example against its single-process reference."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
TRAIN = EXAMPLES / "ddp-v6e-4x4" / "train.py"


def run(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def ttj(name: str, tmp_path: Path) -> str:
    command = [str(BIN / "ttj"), "run", "-f", str(EXAMPLES / name / "job.yaml"), "--output", str(tmp_path / "logs")]
    return run([*command, "--no-screen"], XDG_STATE_HOME=str(tmp_path / "state"))


def logs(tmp_path: Path) -> str:
    return "".join(path.read_text() for path in sorted((tmp_path / "logs").rglob("rank-*.log")))


def test_one_host(tmp_path):
    ttj("env-v6e-2x2", tmp_path)
    written = logs(tmp_path)
    assert all(f"rank {rank} of 4: sum of ranks 6" in written for rank in range(4))


def test_two_hosts(tmp_path):
    ttj("hosts-v5p-2x2x2", tmp_path)
    order = [[rank, rank // 4, rank % 4] for rank in range(8)]
    assert f"rank, host, device: {order}" in logs(tmp_path)


def test_two_slices(tmp_path):
    ttj("slices-v6e-2x4", tmp_path)
    written = logs(tmp_path)
    assert f"slice 0: {sum(range(8))} of {sum(range(16))}" in written
    assert f"slice 1: {sum(range(8, 16))} of {sum(range(16))}" in written


def trained(command: list[str], checkpoint: Path, epochs: int) -> tuple[dict[str, torch.Tensor], str]:
    options = ["--epochs", str(epochs), "--checkpoint", str(checkpoint)]
    written = run([*command, str(TRAIN), *options], PYTHONPATH=str(ROOT / "operator"))
    return torch.load(checkpoint, weights_only=True)["model"], written


def test_training_under_torchrun_equals_a_single_process_and_resumes(tmp_path):
    alone, written = trained([sys.executable], tmp_path / "alone.pt", 6)
    together, _ = trained([str(BIN / "torchrun"), "--nproc-per-node=4"], tmp_path / "together.pt", 6)
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-4, atol=1e-5)
    assert "test accuracy: 9" in written
    trained([sys.executable], tmp_path / "resumed.pt", 3)
    resumed, _ = trained([sys.executable], tmp_path / "resumed.pt", 6)
    for name, value in alone.items():
        torch.testing.assert_close(resumed[name], value)


@pytest.mark.timeout(600)
def test_sixteen_ranks_on_four_hosts_equal_a_single_process(tmp_path):
    """The same job file as `make demo` with fewer epochs: its checkpoint against one process without any of us."""
    text = (EXAMPLES / "ddp-v6e-4x4" / "job.yaml").read_text()
    shorter = text.replace('"30"', '"6"').replace("/checkpoints/ddp.pt", str(tmp_path / "ranks.pt"))
    job = tmp_path / "job.yaml"
    job.write_text(shorter)
    command = [str(BIN / "ttj"), "run", "-f", str(job), "--workdir", str(TRAIN.parent), "--no-screen"]
    run([*command, "--output", str(tmp_path / "logs")], XDG_STATE_HOME=str(tmp_path / "state"))
    alone, _ = trained([sys.executable], tmp_path / "alone.pt", 6)
    ranks = torch.load(tmp_path / "ranks.pt", weights_only=True)["model"]
    for name, value in alone.items():
        torch.testing.assert_close(ranks[name], value, rtol=1e-4, atol=1e-5)
