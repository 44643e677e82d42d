"""Rendering one job: median and p99 over 2,000 calls, in milliseconds. Goal: p99 < 5 ms."""

import statistics
import time
from pathlib import Path

from torchtpu_operator.api.documents import load
from torchtpu_operator.api.validation import check
from torchtpu_operator.manifests.rayjob import render

EXAMPLE = Path(__file__).parents[1] / "examples" / "ddp-v6e-4x4" / "job.yaml"


def main() -> None:
    job, _ = check(load(EXAMPLE.read_bytes(), "example")[0].value)
    assert job is not None
    times = []
    for _ in range(2000):
        start = time.perf_counter()
        render(job)
        times.append(1000 * (time.perf_counter() - start))
    times.sort()
    print(f"render: median {statistics.median(times):.3f} ms, p99 {times[1979]:.3f} ms, largest {times[-1]:.3f} ms")


if __name__ == "__main__":
    main()
