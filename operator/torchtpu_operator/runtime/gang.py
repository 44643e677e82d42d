"""What the driver knows of the ranks, and what that means: first failure, uneven end, the termination. Pure.

Times are seconds on the driver's monotonic clock.
"""

import json
import math
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchtpu_operator.contract.exits import Cause
from torchtpu_operator.contract.progress import REPORT_METRICS, HostProgress, Phase, Progress
from torchtpu_operator.contract.termination import Termination
from torchtpu_operator.runtime.plan import RankPlan

NAMED_RANKS = 8
RATE_REPORTS = 16  # reports over which the rate is taken
NAME_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Exit:
    """End of one rank. `stopping`: it ended after its host had been told to stop."""

    rank: int
    code: int
    at: float
    stopping: bool
    error_type: str | None = None


def all_ranks(count: int) -> str:
    """`all 16 ranks`."""
    return f"all {count} ranks" if count > 1 else "the rank"


@dataclass(slots=True)
class Gang:
    """All ranks of one execution."""

    table: Sequence[RankPlan]
    exit_deadline_s: float
    states: list[str] = field(init=False)
    exits: dict[int, Exit] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)  # address of a host that went away: how
    fault: tuple[int, str] | None = None  # a rank that could not be started, and why
    last_progress: float = 0.0
    reports: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RATE_REPORTS))

    def __post_init__(self) -> None:
        self.states = ["waiting"] * len(self.table)

    def event(self, event: dict[str, Any], now: float) -> None:
        """Take an event of a launcher, `age_s` seconds old."""
        rank = event.get("rank", 0)
        if event["event"] == "started":
            self.states[rank] = "running"
        elif event["event"] == "exited":
            at = now - event["age_s"]
            self.exits[rank] = Exit(rank, event["code"], at, event["stopping"], event.get("error_type"))
            self.states[rank] = "failed" if event["code"] else "done"
            self.last_progress = max(self.last_progress, at)
        elif event["event"] == "failed":
            self.fault = min(self.fault or (rank, event["message"]), (rank, event["message"]))

    def report(self, rank: int, text: str, now: float) -> None:
        """Take a record of ttj.report(); whatever is not one is ignored."""
        self.last_progress = now
        record = _record(text) if rank == 0 else None
        if record:
            self.reports.append(record)

    @property
    def first_failure(self) -> Exit | None:
        """The rank that failed first, on its own."""
        failed = [e for e in self.exits.values() if e.code and not e.stopping]
        return min(failed, key=lambda e: (e.at, e.rank), default=None)

    @property
    def succeeded(self) -> bool:
        """Whether every rank ended with 0."""
        return len(self.exits) == len(self.table) and not any(e.code for e in self.exits.values())

    def uneven(self, now: float) -> bool:
        """Whether some ranks ended with 0 and the others have neither ended nor reported for too long."""
        ended = any(e.code == 0 for e in self.exits.values())
        return ended and len(self.exits) < len(self.table) and now - self.last_progress > self.exit_deadline_s

    def trouble(self, now: float) -> bool:
        """Whether the gang has to stop."""
        return bool(self.first_failure or self.lost or self.fault or self.uneven(now))

    def termination(self, stopped: str | None, uneven: bool) -> Termination:
        """Why it ended. A lost host explains failures on other hosts, not those that it still reported itself."""
        failure = self.first_failure
        if self.fault:
            rank, why = self.fault
            ended = self._at(rank, Cause.CONFIGURATION, f"{self._place(rank)} {why}")
        elif failure and (stopped or not self.lost or self.table[failure.rank].address in self.lost):
            ended = self._rank_failed(failure)
        elif stopped:
            ended = Termination(Cause.STOPPED, stopped)
        elif self.lost:
            ended = self._host_lost()
        elif uneven:
            ended = self._uneven()
        elif self.succeeded:
            ended = Termination(Cause.SUCCEEDED, f"{all_ranks(len(self.table))} ended with 0")
        else:
            ended = Termination(Cause.INTERNAL, "the ranks ended without a cause that the driver knows")
        return ended

    def _at(self, rank: int, cause: Cause, message: str, **evidence: Any) -> Termination:
        plan = self.table[rank]
        position = plan.position
        return Termination(
            cause, message, rank, slice_id=position.slice_id, host=position.host, node=plan.address, **evidence
        )

    def _place(self, rank: int) -> str:
        plan = self.table[rank]
        p = plan.position
        return f"rank {rank} (slice {p.slice_id}, host {p.host}, device {p.device}, {plan.address})"

    def _rank_failed(self, failure: Exit) -> Termination:
        secondary = sum(1 for e in self.exits.values() if e.code and not e.stopping) - 1
        message = f"{self._place(failure.rank)} {_how(failure.code)}"
        if failure.error_type:
            message += f", {failure.error_type}"
        done = sorted(e.rank for e in self.exits.values() if e.code == 0 and e.at <= failure.at)
        if done:
            message += f"; {name_ranks(done)} had already ended with 0"
        if secondary:
            message += f"; {secondary} more failed after it"
        evidence = {"exit_code": failure.code, "error_type": failure.error_type, "secondary": secondary}
        return self._at(failure.rank, Cause.RANK_FAILED, message, **evidence)

    def _host_lost(self) -> Termination:
        address, how = next(iter(self.lost.items()))
        ranks = [plan.position.rank for plan in self.table if plan.address == address]
        position = self.table[ranks[0]].position
        secondary = sum(1 for e in self.exits.values() if e.code and not e.stopping)
        message = f"host {position.host} of slice {position.slice_id} ({address}, {name_ranks(ranks)}) went away: {how}"
        if len(self.lost) > 1:
            message += f"; {len(self.lost) - 1} more hosts with it"
        return Termination(
            Cause.HOST_LOST,
            message,
            slice_id=position.slice_id,
            host=position.host,
            node=address,
            secondary=secondary,
        )

    def _uneven(self) -> Termination:
        done = sorted(e.rank for e in self.exits.values() if e.code == 0 and not e.stopping)
        running = [rank for rank in range(len(self.table)) if rank not in done]
        verb = "was" if len(running) == 1 else "were"
        message = (
            f"{name_ranks(done)} ended with 0, but {name_ranks(running)} {verb} still running"
            f" {self.exit_deadline_s:g} s later without a report of progress"
        )
        return self._at(running[0], Cause.UNEVEN_EXIT, message)

    def progress(self, phase: Phase, message: str) -> Progress:
        """The record for whoever looks at the job."""
        by_host: dict[tuple[int, int], list[RankPlan]] = {}
        for plan in self.table:
            by_host.setdefault((plan.position.slice_id, plan.position.host), []).append(plan)
        hosts = tuple(
            HostProgress(
                slice_id,
                host,
                plans[0].address,
                tuple(p.position.rank for p in plans),
                tuple(self.states[p.position.rank] for p in plans),
            )
            for (slice_id, host), plans in by_host.items()
        )
        last = self.reports[-1] if self.reports else {}
        return Progress(
            phase,
            message,
            hosts,
            len(hosts),
            step=last.get("step"),
            total=last.get("total"),
            rate=self._rate(),
            metrics=last.get("metrics", {}),
        )

    def _rate(self) -> float | None:
        if len(self.reports) < 2:
            return None
        first, last = self.reports[0], self.reports[-1]
        seconds = float(last["time"] - first["time"])
        return (last["step"] - first["step"]) / seconds if seconds > 0 else None


def _record(text: str) -> dict[str, Any] | None:
    """A report as ttj.py writes it, checked: user code could have written anything."""
    try:
        data = json.loads(text)
        step, total, time = data["step"], data.get("total"), data["time"]
        metrics = data["metrics"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not isinstance(step, int) or not isinstance(total, int | None) or not isinstance(time, int | float):
        return None
    kept = {k[:NAME_LENGTH]: float(v) for k, v in metrics if isinstance(v, int | float) and math.isfinite(v)}
    return {"step": step, "total": total, "time": time, "metrics": dict(list(kept.items())[:REPORT_METRICS])}


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 1 and 14 more`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:NAMED_RANKS]))
    more = f" and {len(ranks) - NAMED_RANKS} more" if len(ranks) > NAMED_RANKS else ""
    return f"ranks {shown}{more}"
