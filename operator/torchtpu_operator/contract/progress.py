"""The progress record: what the driver knows about a running job, written once a second as `progress.json`."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

PROGRESS_FILE = "progress.json"
REPORT_METRICS = 16  # most metrics of one report that are kept

Phase = Literal["Gathering", "Starting", "Running", "Stopping", "Ended"]


@dataclass(frozen=True, slots=True)
class HostProgress:
    """One host: where it is, and each of its ranks' state (`waiting`, `running`, `done`, `failed`)."""

    slice_id: int
    host: int
    address: str
    ranks: tuple[int, ...] = ()
    states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """`step`, `total`, `metrics` are rank 0's last report; `rate` is its steps per second over the last reports."""

    phase: Phase
    message: str = ""
    hosts: tuple[HostProgress, ...] = ()
    hosts_wanted: int = 0
    step: int | None = None
    total: int | None = None
    rate: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Progress":
        """Raises ValueError on anything else than a progress record."""
        try:
            data: dict[str, Any] = json.loads(text)
            hosts = tuple(
                HostProgress(**{**h, "ranks": tuple(h["ranks"]), "states": tuple(h["states"])}) for h in data["hosts"]
            )
            return cls(**{**data, "hosts": hosts})
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"not a progress record: {error}") from error
