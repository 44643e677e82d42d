"""From a running Ray to the first training step of 16 ranks, against torchrun on the same machine.

Five interleaved pairs; the clock runs from starting the driver (or torchrun) to rank 0's first optimizer step.
Goal: the median of the ratios is at most 1.2.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the simulated TPU hosts of the tests

from tests.runtime.raycluster import Cluster, base_environment, job  # noqa: E402

PAIRS = 5
STEP = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 8)).sum().backward()
optimizer.step()
if dist.get_rank() == 0:
    pathlib.Path(sys.argv[1]).write_text(str(time.time()))
dist.barrier()
dist.destroy_process_group()
"""


def seconds(start: float, stamp: Path) -> float:
    taken = float(stamp.read_text()) - start
    stamp.unlink()
    return taken


def ours(cluster: Cluster, script: Path, stamp: Path) -> float:
    start = time.time()
    result = cluster.drive(job([sys.executable, str(script), str(stamp)], topology="4x4"))
    assert result.code == 0, result.output
    return seconds(start, stamp)


def torchrun(script: Path, stamp: Path) -> float:
    start = time.time()
    command = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node=16", str(script), str(stamp)]
    subprocess.run(command, check=True, capture_output=True, env=base_environment())
    return seconds(start, stamp)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ttj", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder))
        script, stamp = Path(folder) / "step.py", Path(folder) / "stamp"
        script.write_text(STEP)
        try:
            cluster.start_head()
            cluster.add_slice(1, "v6e", "4x4")
            cluster.wait_for_nodes()
            ours(cluster, script, stamp), torchrun(script, stamp)  # both once, to warm files
            pairs = []
            for number in range(PAIRS):
                pairs.append((ours(cluster, script, stamp), torchrun(script, stamp)))
                print(f"pair {number + 1}: ours {pairs[-1][0]:.1f} s, torchrun {pairs[-1][1]:.1f} s", flush=True)
        finally:
            cluster.stop()
    ratios = sorted(a / b for a, b in pairs)
    mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    print(f"launch: ours {mine:.1f} s, torchrun {theirs:.1f} s, ratio {statistics.median(ratios):.2f} ({spread})")


if __name__ == "__main__":
    main()
