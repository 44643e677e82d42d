"""The Ray job's entrypoint on the head: gathers the slices, starts an agent per host, supervises the ranks.

It ends with an exit code of contract.exits and, as the last line of its output, `TTJ-RESULT <key> <termination>`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sized
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtpu_operator.contract import names, versions
from torchtpu_operator.contract.exits import EXIT_CODES, Cause
from torchtpu_operator.contract.job import JobSpec
from torchtpu_operator.contract.progress import PROGRESS_FILE, Phase, Progress
from torchtpu_operator.contract.termination import Termination
from torchtpu_operator.runtime import gather, markers
from torchtpu_operator.runtime.gang import Gang, all_ranks
from torchtpu_operator.runtime.plan import rank_table, shape_of
from torchtpu_operator.runtime.stream import CHUNK, RESULT_MARK, Stream, say
from torchtpu_operator.tpu.environment import EnvironmentTooLarge
from torchtpu_operator.tpu.slices import ShapeError

if TYPE_CHECKING:
    from torchtpu_operator.runtime.crew import Crew

# Ray copies the last ten lines of a failed job's log into the job's message, KubeRay that into the RayJob's status. So
# many lines of ours end the log that none of the user's gets there.
RESULT_LINES = 10
GATHER_S = 1.0
AGENT_START_S = 60.0  # at least, also when the start-up deadline is near
PROGRESS_S = 1.0
SETTLE_S = 15.0  # after the grace, for hosts to say that nothing is left
RAY_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"

logger = logging.getLogger(__name__)


class EndedEarlyError(Exception):
    """The job ends before any rank ran."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.termination = Termination(cause, message)


class Driver:
    """One execution of a job."""

    def __init__(self, spec: JobSpec, run_dir: Path) -> None:
        self.spec = spec
        self.run_dir = run_dir
        self.shape = shape_of(spec)
        self._signalled = False
        self._progress_at = 0.0
        self._said = ""
        self._last = Progress("Gathering")

    def on_signal(self, *_: object) -> None:
        """SIGTERM: stop with the ranks' grace."""
        self._signalled = True

    def stopped(self) -> str | None:
        """Who asked this job to stop, if anyone did."""
        if self._signalled:
            return "the job was told to stop (SIGTERM)"
        if markers.stop_requested(self.run_dir):
            return "the head was told to stop"
        return None

    def run(self) -> Termination:
        """Gather, start, supervise. Raises EndedEarlyError."""
        from torchtpu_operator.runtime.crew import Crew

        gathered = self._gather()
        with Crew(gathered, self.shape.devices_per_host) as crew:
            self._progress(Progress("Starting", "starting agents", hosts_wanted=len(crew.hosts)))
            gang = self._start(crew)
            return self._supervise(crew, gang)

    def _gather(self) -> list[tuple[gather.Host, ...]]:
        """Wait for whole slices. Raises EndedEarlyError."""
        import ray

        wanted = self.spec.slices * self.shape.hosts
        self._deadline = time.monotonic() + self.spec.startup_deadline_s
        while True:
            state = gather.assess(ray.nodes(), self.shape, self.spec.slices)
            if not state.missing:
                return list(state.slices)
            self._say(f"waiting: {state.missing}")
            self._progress(Progress("Gathering", state.missing, hosts_wanted=wanted), force=True)
            if stopped := self.stopped():
                raise EndedEarlyError(Cause.STOPPED, stopped)
            if time.monotonic() > self._deadline:
                why = f"not whole after {self.spec.startup_deadline_s:g} s: {state.missing}"
                raise EndedEarlyError(Cause.STARTUP_DEADLINE, why)
            time.sleep(min(GATHER_S, max(0.05, self._deadline - time.monotonic())))

    def _start(self, crew: Crew) -> Gang:
        """Learn about the hosts, make the rank table, start every rank. Raises EndedEarlyError."""
        from torchtpu_operator.runtime.crew import HostGoneError

        try:
            facts = crew.facts(max(AGENT_START_S, self._deadline - time.monotonic()), self.stopped)
            crew.order({node: fact["slice_index"] for node, fact in facts.items()})
            port = facts[crew.hosts[0].node_id]["port"]
            addresses = [[host.address for host in hosts] for hosts in crew.slices]
            table = rank_table(self.spec, addresses, port)
            size = f"{_count(crew.slices, 'slice')}, {_count(crew.hosts, 'host')}, {_count(table, 'rank')}"
            say(f"all hosts are there: {size}")
            fault = crew.start(table, list(self.spec.entrypoint), self.spec.working_dir, self.spec.stop_grace_s)
        except HostGoneError as gone:
            stopped = self.stopped()
            raise EndedEarlyError(Cause.STOPPED if stopped else Cause.HOST_LOST, stopped or str(gone)) from gone
        except TimeoutError as error:
            raise EndedEarlyError(Cause.STARTUP_DEADLINE, str(error)) from error
        except EnvironmentTooLarge as error:
            raise EndedEarlyError(Cause.CONFIGURATION, str(error)) from error
        if fault:
            raise EndedEarlyError(Cause.CONFIGURATION, fault)
        return Gang(table, self.spec.exit_deadline_s)

    def _supervise(self, crew: Crew, gang: Gang) -> Termination:
        """Watch until nothing runs any more. The first trouble stops the gang at once."""
        stream = Stream(0)
        stopped, uneven, give_up = None, False, float("inf")
        while not crew.all_done and time.monotonic() < give_up:
            for answer in crew.poll(stream.wanted()):
                self._take(gang, stream, answer)
            gang.lost.update(crew.lost)
            now = time.monotonic()
            if give_up == float("inf") and (self.stopped() or gang.trouble(now)):
                stopped, uneven = self.stopped(), gang.uneven(now)
                give_up = now + self.spec.stop_grace_s + SETTLE_S
                crew.stop()
            elif gang.lost and not gang.first_failure:
                stopped = stopped or self.stopped()  # the whole job is going, not only that host
            self._progress(gang.progress(self._phase(gang, give_up), ""))
        for address in crew.unfinished:
            gang.lost.setdefault(address, "it did not answer")
        self._last_lines(crew, gang, stream)
        return gang.termination(stopped, uneven)

    @staticmethod
    def _phase(gang: Gang, give_up: float) -> Phase:
        if give_up != float("inf"):
            return "Stopping"
        return "Starting" if "waiting" in gang.states else "Running"

    def _take(self, gang: Gang, stream: Stream, answer: Mapping[str, Any]) -> None:
        now = time.monotonic()
        before = "waiting" in gang.states
        for event in answer["events"]:
            gang.event(event, now)
        for rank, text in answer["reports"].items():
            gang.report(rank, text, now)
        for begin, data in answer["output"].values():
            stream.take(begin, data)
        if before and "waiting" not in gang.states:
            say(f"{all_ranks(len(gang.states))} started")

    def _last_lines(self, crew: Crew, gang: Gang, stream: Stream) -> None:
        """What rank 0 wrote at the end, and the end of the first failing rank's output."""
        failure = gang.first_failure
        followed = [stream] if failure is None or failure.rank == 0 else [stream, Stream(failure.rank)]
        for last in followed:
            begin, data = crew.output(last.rank, last.offset if last is stream else -1)
            last.take(begin, data)
            if len(data) == CHUNK:  # there is more: the very end matters most
                last.take(*crew.output(last.rank, -1))
            last.finish()

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            say(text)

    def _progress(self, progress: Progress, force: bool = False) -> None:
        """Write the record, at most once a second unless forced."""
        now = time.monotonic()
        self._last = progress
        if force or now - self._progress_at >= PROGRESS_S:
            self._progress_at = now
            with contextlib.suppress(OSError):
                write_atomically(self.run_dir / PROGRESS_FILE, progress.to_json())

    def ended(self, termination: Termination) -> None:
        """Write the last record."""
        self._progress(replace(self._last, phase="Ended", message=termination.message), force=True)


def _count(things: Sized, noun: str) -> str:
    return f"{len(things)} {noun}" + ("" if len(things) == 1 else "s")


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that readers see the old or the new text."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def version_fault(python: tuple[int, int], ray_version: str) -> str | None:
    """Why this image cannot run the job, as a sentence."""
    if not versions.PYTHON_MINIMUM <= python <= versions.PYTHON_MAXIMUM:
        low, high = (".".join(map(str, v)) for v in (versions.PYTHON_MINIMUM, versions.PYTHON_MAXIMUM))
        return f"the image has Python {python[0]}.{python[1]}; {low} to {high} is needed"
    if tuple(int(part) for part in ray_version.split(".")[:2]) < versions.RAY_MINIMUM:
        return f"the image has Ray {ray_version}; {'.'.join(map(str, versions.RAY_MINIMUM))} or newer is needed"
    return None


def connect() -> None:
    """Join the cluster that this job runs in, so that agents inherit nothing from the job.

    The job's runtime environment holds the result key, which no process near a rank may see.
    """
    import ray

    if RAY_JOB_CONFIG in os.environ:
        config = json.loads(os.environ[RAY_JOB_CONFIG])
        os.environ[RAY_JOB_CONFIG] = json.dumps({**config, "runtime_env": {}})
    ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)


@contextlib.contextmanager
def _running(driver: Driver) -> Iterator[None]:
    with markers.busy(driver.run_dir):
        connect()
        signal.signal(signal.SIGTERM, driver.on_signal)  # after Ray, which sets its own
        signal.signal(signal.SIGINT, driver.on_signal)
        yield


def execute(environment: Mapping[str, str]) -> Termination:
    """Run the job that the environment describes; never raises for what a user can cause."""
    import ray

    if fault := version_fault(sys.version_info[:2], ray.__version__):
        return Termination(Cause.CONFIGURATION, fault)
    try:
        spec = JobSpec.from_json(environment.get(names.ENV_JOB, ""))
        driver = Driver(spec, Path(environment.get(names.ENV_RUN_DIR, names.RUN_PATH)))
    except (ValueError, ShapeError) as error:
        return Termination(Cause.CONFIGURATION, f"the job record cannot be used: {error}")
    try:
        with _running(driver):
            termination = driver.run()
    except EndedEarlyError as early:
        termination = early.termination
    except Exception as error:
        logger.exception("the driver failed")
        termination = Termination(Cause.INTERNAL, f"the driver failed: {type(error).__name__}")
    driver.ended(termination)
    return termination


def drive(environment: Mapping[str, str]) -> int:
    """Entry of the verb; returns the exit code."""
    key = environment.get(names.ENV_RESULT_KEY, "")
    termination = execute(environment)
    say(f"{termination.cause}: {termination.message}")
    sys.stdout.write(f"{RESULT_MARK} {key}\n" * (RESULT_LINES - 1))
    sys.stdout.write(f"{RESULT_MARK} {key} {termination.to_json()}\n")
    sys.stdout.flush()
    return EXIT_CODES[termination.cause]
