"""What a training script imports: the device, the backend and progress, the same on TPU, CPU, GPU and under torchrun.

    torch.distributed.init_process_group(ttj.backend())
    model.to(ttj.device())
    ttj.report(step, metrics={"loss": loss}, total=steps)

Outside a TorchTPUJob (plain python, torchrun) it looks at what torch finds, and `report` does nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["backend", "device", "report"]

_INTERVAL_S = 0.2  # between two written reports
_METRICS = 16  # more are left out
_written = -math.inf
_pending: tuple[int, Mapping[str, Any], int | None, float] | None = None


def _kind() -> str:
    """`tpu` (TorchTPU), `xla` (TorchXLA), `cuda` or `cpu`."""
    if os.environ.get("TTJ_DEVICE") == "CPU":
        return "cpu"
    if os.environ.get("TTJ_DEVICE") == "TPU":
        return "xla" if os.environ.get("TTJ_FRAMEWORK") == "TorchXLA" else "tpu"
    import torch

    # A CUDA build names cuda as its accelerator on a machine without one.
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kind = accelerator.type if accelerator else "cpu"
    return kind if kind in ("tpu", "cuda") else "cpu"


def device() -> torch.device:
    """The device of this process. Raises RuntimeError or ImportError if the job's framework is not in the image."""
    kind = _kind()
    if kind == "xla":
        import torch_xla

        found: torch.device = torch_xla.device()
        return found
    import torch

    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if kind == "cuda" else torch.device(kind)


def backend() -> str:
    """The name that `torch.distributed.init_process_group` takes for `device()`."""
    kind = _kind()
    if kind == "xla":
        import torch_xla.distributed.xla_backend  # noqa: F401  registers it
    return {"cpu": "gloo", "cuda": "nccl", "tpu": "tpu_dist", "xla": "xla"}[kind]


def report(step: int, metrics: Mapping[str, Any] | None = None, total: int | None = None) -> None:
    """Tell the job how far this rank is. Cheap: most calls only remember their arguments.

    `step` counts from 0 or 1 as you like, `total` is the last one; metrics are numbers or one-element tensors, which
    are read only when a report is written, at most five times a second and at the end. Raises TypeError if `step` or
    `total` is not an int; never for a full disk or the like.
    """
    global _pending
    for name, value in (("step", step), ("total", total)):
        if not isinstance(value, int) and not (name == "total" and value is None):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if "TTJ_REPORT_FILE" not in os.environ:
        return
    if _pending is None and _written == -math.inf:
        atexit.register(_flush)
    _pending = (step, metrics or {}, total, time.time())
    if time.monotonic() - _written >= _INTERVAL_S:
        _flush()


def _flush() -> None:
    """Write the report that is pending, if any."""
    global _pending, _written
    if _pending is None:
        return
    step, metrics, total, when = _pending
    _pending, _written = None, time.monotonic()
    numbers = {}
    for name, value in list(metrics.items())[:_METRICS]:
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # not a number: left out
            numbers[str(name)] = float(value.detach() if hasattr(value, "detach") else value)
    path = os.environ["TTJ_REPORT_FILE"]
    record = {"step": int(step), "total": total, "metrics": numbers, "time": when}
    with contextlib.suppress(OSError):
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(f"{path}.new", path)
