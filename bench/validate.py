"""Reading and validating 1,000 documents: median of 5 with spread, in seconds. Goal: < 3 s."""

import statistics
import time
from pathlib import Path

from torchtpu_operator.api.documents import load
from torchtpu_operator.api.validation import check

EXAMPLE = Path(__file__).parents[1] / "examples" / "ddp-v6e-4x4" / "job.yaml"


def main() -> None:
    text = "---\n".join([EXAMPLE.read_text()] * 1000)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        documents = load(text, "bench")
        assert len(documents) == 1000
        assert all(check(document.value)[0] for document in documents)
        times.append(time.perf_counter() - start)
    print(f"validate 1,000: median {statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})")


if __name__ == "__main__":
    main()
