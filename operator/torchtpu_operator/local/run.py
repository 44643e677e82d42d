"""`ttj run`: plays KubeRay and kubelet for one rendered RayJob, from the first process to the last."""

import contextlib
import os
import random
import secrets
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from torchtpu_operator.contract.exits import Cause
from torchtpu_operator.contract.progress import PROGRESS_FILE, Progress
from torchtpu_operator.contract.termination import Termination
from torchtpu_operator.local import checks, pods
from torchtpu_operator.local.checks import EnvironmentProblem
from torchtpu_operator.local.pods import LocalPod, Plan, Site
from torchtpu_operator.local.screen import Screen
from torchtpu_operator.local.supervisor import Supervisor
from torchtpu_operator.local.tail import Tail

STEP_S = 0.1
SHOWN = ("[rank ", "ttj: ", "... ")  # of the submitter's log; Ray's own words stay in the file
START_S = 180.0  # for one host, while several start at once
STOP_S = pods.STOP_GRACE_S + 25.0  # driver, agents and Ray's own end come after the grace
FAILED, INTERRUPTED, TERMINATED = 1, 130, 143


@dataclass(frozen=True, slots=True)
class Options:
    """Folders must exist, but for `volumes`."""

    workdir: Path
    output: Path
    volumes: Path
    timeout_s: float | None = None
    shell: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `log` is the failing rank's; where nobody said how it ended, the submitter's; else None."""

    exit_code: int
    message: str
    termination: Termination | None
    log: Path | None
    seconds: float


class _Ended(Exception):
    """The run is over before the submitter is."""


def run(objects: Sequence[Mapping[str, Any]], options: Options, screen: Screen) -> Outcome:
    """Run to the end. Raises EnvironmentProblem, UnsupportedObject."""
    rayjob = next(item for item in objects if item["kind"] == "RayJob")
    notes = checks.check(pods.job_record(rayjob), options.output)
    with _signals() as signals, Supervisor(options.output / "keeper.log") as supervisor:
        rng = random.SystemRandom()
        plan = pods.plan(rayjob, site(options, supervisor.scratch, rng), rng)
        notes += [f"cleared up after an earlier run: {folder}" for folder in supervisor.swept]
        session = _Session(plan, options, screen, supervisor, signals)
        screen.begin(plan, notes)
        try:
            return session.run()
        finally:
            screen.close()


def site(options: Options, scratch: Path, rng: random.Random) -> Site:
    """Random loopback network and free ports, so that runs live side by side."""
    gcs, dashboard, client, agent = free_ports(4, rng)
    network = f"127.{rng.randint(64, 250)}.{rng.randint(0, 250)}"
    return Site(
        options.output, scratch, options.volumes, options.workdir, sys.executable, network,
        gcs, dashboard, client, agent, secrets.token_hex(16), options.shell,
    )  # fmt: skip


def free_ports(count: int, rng: random.Random) -> list[int]:
    """Ports that nothing listens on now, below the range that the kernel gives to connections."""
    found: list[int] = []
    while len(found) < count:
        port = rng.randint(20000, 31999)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            if port not in found:
                found.append(port)
    return found


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM, SIGHUP instead of ending at them."""
    seen: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        seen.append(number)

    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {kind: signal.signal(kind, note) for kind in kinds}
    try:
        yield seen
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


class _Session:
    def __init__(
        self, plan: Plan, options: Options, screen: Screen, supervisor: Supervisor, signals: list[int]
    ) -> None:
        self.plan, self.options, self.screen, self.supervisor, self.signals = plan, options, screen, supervisor, signals
        self.began = time.monotonic()
        self.log = Tail(options.output / "submitter.log")
        self.record = ""
        self.stopping: float | None = None  # when it is over at the latest
        self.why = ""
        self.exit_code: int | None = None

    def run(self) -> Outcome:
        self._prepare()
        try:
            self._bring_up()
            self._follow()
        except _Ended:
            pass
        return self._outcome()

    def _prepare(self) -> None:
        tools = self.supervisor.scratch / "bin"
        tools.mkdir()
        for name, words in {"python": "", "python3": "", "ray": "-m ray.scripts.scripts "}.items():
            tool = tools / name
            tool.write_text(f'#!/bin/sh\nexec {_quoted(sys.executable)} {words}"$@"\n')
            tool.chmod(0o755)
        for pod in (self.plan.head, *self.plan.workers, self.plan.submitter):
            for folder in (*pod.folders, self.supervisor.scratch / "tmp" / pod.name):
                folder.mkdir(parents=True, exist_ok=True)

    # Bring-up

    def _bring_up(self) -> None:
        head = self.plan.head
        self._init([head])
        self._start(head)
        self._init(self.plan.workers)
        # A host's `ray start` gives up after some seconds if the head's own node is not there: its raylet comes last.
        raylet = pods.ray_folder(self.supervisor.scratch, head.address) / "session_latest/sockets/raylet"
        self._wait(raylet.exists, [head], "Ray's head")
        self._start_hosts()
        dashboard = self.plan.submitter.main.env["RAY_DASHBOARD_ADDRESS"].rsplit(":", 1)
        self._wait(lambda: _listens(dashboard[0], int(dashboard[1])), [head], "Ray's dashboard")
        self._init([self.plan.submitter])
        self._start(self.plan.submitter)

    def _init(self, group: Sequence[LocalPod]) -> None:
        """Init containers: one after another in a pod, pods side by side."""
        for step in range(max((len(pod.init) for pod in group), default=0)):
            running = []
            for pod in group:
                if step < len(pod.init):
                    running.append(f"{pod.name}/init-{step}")
                    self.supervisor.start(running[-1], pod.init[step], self._log_of(pod))
            self._wait(partial(self._all_ended, running), [], "the init containers")
            for name in running:
                if self.supervisor.codes.get(name) != 0:
                    self._failed(name)

    def _start(self, pod: LocalPod) -> None:
        self.supervisor.start(pod.name, pod.main, self._log_of(pod))
        self.screen.pod(pod.name, "starting")

    def _start_hosts(self) -> None:
        """A few at a time: each start keeps a core busy for seconds."""
        port = next(w for w in self.plan.head.main.argv if w.startswith("--dashboard-agent-listen-port=")).split("=")[1]
        waiting, starting = list(self.plan.workers), [self.plan.head]
        window = checks.cores() + 2

        def all_alive() -> bool:
            for pod in [pod for pod in starting if _healthy(pod.address, port)]:
                starting.remove(pod)
                self.screen.pod(pod.name, "alive")
            while waiting and len(starting) < window:
                starting.append(waiting.pop(0))
                self._start(starting[-1])
            return not waiting and not starting

        limit = START_S * (1 + len(waiting) / window)
        self._wait(all_alive, [self.plan.head, *self.plan.workers], "the simulated TPU hosts", limit)

    def _wait(self, done: Callable[[], bool], alive: Sequence[LocalPod], what: str, limit: float = START_S) -> None:
        """Until `done`. Raises EnvironmentProblem if a pod of `alive` ends or time is up, _Ended when told to stop."""
        deadline = time.monotonic() + limit
        while not done():
            self.supervisor.poll(STEP_S)
            self.screen.tick()
            for pod in alive:
                if self.supervisor.ended(pod.name):
                    self._failed(pod.name)
            self._heed_signals(lambda: None)
            if time.monotonic() > deadline:
                raise EnvironmentProblem(
                    f"{what} did not come up in {limit:.0f} s; the logs are in {self.options.output}"
                )

    def _all_ended(self, names: list[str]) -> bool:
        return all(self.supervisor.ended(name) for name in names)

    def _failed(self, name: str) -> None:
        pod = name.split("/")[0]
        log = self.options.output / f"{pod}.log"
        why = self.supervisor.failed.get(name) or f"ended with code {self.supervisor.codes.get(name)}"
        last = "".join(f"\n  {line}" for line in Tail.last(log, 8))
        raise EnvironmentProblem(f"{name} did not start: {why}; its log is {log}{last}")

    # While the job runs

    def _follow(self) -> None:
        name = self.plan.submitter.name
        while not self.supervisor.ended(name):
            self.supervisor.poll(STEP_S)
            self._show()
            self._heed_signals(self._stop)
            now = time.monotonic()
            limit = self.options.timeout_s
            if limit is not None and self.stopping is None and now - self.began > limit:
                self.why, self.exit_code = f"not done after {limit:g} s (--timeout)", FAILED
                self._stop()
            if self.stopping is not None and now > self.stopping:
                self.screen.note("the job did not stop in time and is killed")
                raise _Ended
        if name in self.supervisor.failed:
            self._failed(name)
        self._show(last=True)

    def _show(self, last: bool = False) -> None:
        for line in self.log.lines(last):
            if line.startswith(SHOWN):
                self.screen.log(line)
        with contextlib.suppress(OSError, ValueError):
            text = (self.plan.head.run_dir / PROGRESS_FILE).read_text(encoding="utf-8")
            if text != self.record:
                self.record = text
                self.screen.progress(Progress.from_json(text))
        self.screen.tick()

    def _heed_signals(self, stop: Callable[[], None]) -> None:
        """The first signal stops with grace, the next at once. Before the job is there, none is needed."""
        if not self.signals:
            return
        if self.exit_code not in (INTERRUPTED, TERMINATED):
            self.exit_code = INTERRUPTED if self.signals[0] == signal.SIGINT else TERMINATED
            self.why = "interrupted" if self.exit_code == INTERRUPTED else "told to stop by a signal"
            self._first = len(self.signals)
            stop()
            if self.stopping is None:
                raise _Ended
            self.screen.note(f"stopping, the ranks have {pods.STOP_GRACE_S:g} s; Ctrl-C again kills them")
        elif len(self.signals) > self._first:
            raise _Ended

    def _stop(self) -> None:
        """As when the head's pod is deleted: its preStop hook runs, the driver stops the ranks and ends."""
        self.stopping = time.monotonic() + STOP_S
        head = self.plan.head
        if head.pre_stop:
            self.supervisor.start("head/stop", head.pre_stop, self._log_of(head))
        else:
            self.supervisor.terminate(self.plan.submitter.name)

    def _outcome(self) -> Outcome:
        termination = log = None
        with contextlib.suppress(OSError, ValueError):
            termination = Termination.from_json(self.plan.termination.read_text(encoding="utf-8"))
        code = self.supervisor.codes.get(self.plan.submitter.name)
        message = self.why or (termination.message if termination else f"the submitter ended with code {code}")
        exit_code = self.exit_code if self.exit_code is not None else (0 if code == 0 else FAILED)
        if termination and termination.rank is not None and termination.cause == Cause.RANK_FAILED:
            where = f"slice-{termination.slice_id}-host-{termination.host}"
            log = self.options.output / where / f"rank-{termination.rank}.log"
        elif termination is None and exit_code == FAILED:
            log = self.log.path
        return Outcome(exit_code, message, termination, log, time.monotonic() - self.began)

    def _log_of(self, pod: LocalPod) -> Path:
        return self.options.output / f"{pod.name}.log"


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, port)) == 0


def _healthy(host: str, port: str) -> bool:
    """KubeRay's readiness probe of a node: its agent answers."""
    request = urllib.request.Request(f"http://{host}:{port}/api/healthz")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=0.5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
