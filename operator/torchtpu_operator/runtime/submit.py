"""The submitter: hands the job to Ray once, follows it, and ends as the driver ends.

Ray never gets the job twice: it is asked for the submission id first, also after a request without an answer, and
refuses an id that it knows.
"""

import asyncio
import contextlib
import os
import secrets
import shlex
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchtpu_operator.contract import names
from torchtpu_operator.contract.exits import EXIT_CODES, Cause
from torchtpu_operator.contract.termination import Termination
from torchtpu_operator.runtime.stream import RESULT_MARK

TERMINATION_LOG = "/dev/termination-log"
DASHBOARD_S = 300.0  # for the dashboard to answer at first
SILENCE_S = 120.0  # of the dashboard, later, until the job counts as lost
POLL_S = 1.0
STOP_S = 60.0  # for a stopped job to end
LAST_LINES_S = 10.0  # for the log's end to arrive after the job's
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class LostError(Exception):
    """Ray cannot be asked, or does not know the job."""


class Follower(threading.Thread):
    """Prints the driver's log as it grows, over as many streams as it takes; keeps the result line to itself.

    Every stream of Ray's starts at the log's beginning: what was printed is skipped, so only a broken stream costs a
    second reading.
    """

    def __init__(self, client: Any, job: str, key: str) -> None:
        super().__init__(daemon=True)
        self._client, self._job = client, job
        self._mark = f"{RESULT_MARK} {key}"
        self._printed = 0  # characters
        self._partial = ""
        self.result: str | None = None
        self.job_ended = threading.Event()

    def run(self) -> None:
        """Follow until a stream that began after the job's end has been read to its end."""
        while True:
            last = self.job_ended.is_set()
            # Whatever breaks a stream (network, proxy, dashboard), the next one tells; the job's state is polled apart.
            with contextlib.suppress(Exception):
                asyncio.run(self._follow())
                last = True
            if last and self.job_ended.is_set():
                break
            self.job_ended.wait(POLL_S)
        self._take("\n" if self._partial else "")

    async def _follow(self) -> None:
        skip = self._printed
        async for text in self._client.tail_job_logs(self._job):
            if skip >= len(text):
                skip -= len(text)
                continue
            self._printed += len(text) - skip
            self._take(text[skip:])
            skip = 0

    def _take(self, text: str) -> None:
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            if line.startswith(self._mark):
                self.result = line.removeprefix(self._mark).strip() or self.result
            else:
                sys.stdout.write(line + "\n")
        sys.stdout.flush()


class Submitter:
    """One submission."""

    def __init__(self, address: str, job: str) -> None:
        self.address, self.job = address, job
        self.stop_at: float | None = None
        self._client: Any = None

    def on_signal(self, *_: object) -> None:
        """SIGTERM: have Ray stop the job."""
        if self.stop_at is None:
            self.stop_at = time.monotonic() + STOP_S

    def connect(self, timeout_s: float = DASHBOARD_S) -> None:
        """Wait for the dashboard. Raises LostError."""
        from ray.job_submission import JobSubmissionClient

        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._client = JobSubmissionClient(self.address)
                return
            except (ConnectionError, RuntimeError, OSError) as error:
                if time.monotonic() > deadline or self.stop_at:
                    why = f"Ray's dashboard at {self.address} did not answer in {timeout_s:g} s"
                    raise LostError(f"{why} ({type(error).__name__})") from error
                time.sleep(POLL_S)

    def info(self) -> Any:
        """What Ray knows of the job; None if it does not know it. Raises RuntimeError or OSError without an answer."""
        try:
            return self._client.get_job_info(self.job)
        except RuntimeError as error:
            if "status code 404" in str(error):
                return None
            raise

    def ensure_submitted(self, timeout_s: float = SILENCE_S) -> Any:
        """Submit unless Ray knows the job; its info. Raises LostError."""
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(RuntimeError, OSError):  # no answer: the next turn asks before it submits
                if info := self.info():
                    return info
                self._client.submit_job(
                    entrypoint=f"exec {shlex.quote(sys.executable)} -m {names.RUNTIME_MODULE} drive",
                    submission_id=self.job,
                    runtime_env={"env_vars": {names.ENV_RESULT_KEY: secrets.token_hex(16)}},
                )
                continue
            if time.monotonic() > deadline or self.stop_at:
                raise LostError("the job could not be submitted to Ray")
            time.sleep(POLL_S)

    def follow(self, info: Any) -> Termination:
        """Wait for the job's end. Raises LostError."""
        key = ((info.runtime_env or {}).get("env_vars") or {}).get(names.ENV_RESULT_KEY, "")
        follower = Follower(self._client, self.job, key)
        follower.start()
        info = self._wait()
        follower.job_ended.set()
        follower.join(LAST_LINES_S)
        return verdict(info.status.value, info.driver_exit_code, follower.result)

    def _wait(self) -> Any:
        answered, stop_sent = time.monotonic(), False
        while True:
            try:
                if self.stop_at and not stop_sent:
                    self._client.stop_job(self.job)
                    stop_sent = True
                info = self.info()
                if info is None:
                    raise LostError("Ray no longer knows the job: its head was replaced")
                if info.status.value in ENDED:
                    return info
                answered = time.monotonic()
            except (RuntimeError, OSError) as error:
                if time.monotonic() - answered > SILENCE_S:
                    raise LostError(f"Ray's dashboard was silent for {SILENCE_S:g} s") from error
            if self.stop_at and time.monotonic() > self.stop_at:
                raise LostError(f"the job did not stop in {STOP_S:g} s")
            time.sleep(POLL_S if not self.stop_at else POLL_S / 4)


def verdict(status: str, exit_code: int | None, result: str | None) -> Termination:
    """The driver's own word if it fits its exit code, else what the exit code says."""
    with contextlib.suppress(ValueError):
        termination = Termination.from_json(result or "")
        if status == "STOPPED" or EXIT_CODES[termination.cause] == exit_code:
            return termination
    if status == "STOPPED":
        return Termination(Cause.STOPPED, "the Ray job was stopped before its driver said how it ended")
    causes = {code: cause for cause, code in EXIT_CODES.items()}
    cause = causes.get(exit_code if exit_code is not None else -1, Cause.INTERNAL)
    if status == "FAILED" and exit_code is None:
        return Termination(Cause.INTERNAL, "Ray could not run the driver, or its node died")
    return Termination(cause, f"the driver ended with exit code {exit_code} and no result")


def _run(submitter: Submitter) -> Termination:
    try:
        submitter.connect()
        return submitter.follow(submitter.ensure_submitted())
    except LostError as lost:
        cause = Cause.STOPPED if submitter.stop_at else Cause.SUBMISSION
        return Termination(cause, str(lost))


def submit(environment: Mapping[str, str]) -> int:
    """Entry of the verb; returns the exit code."""
    try:
        submitter = Submitter(_url(environment["RAY_DASHBOARD_ADDRESS"]), environment["RAY_JOB_SUBMISSION_ID"])
    except KeyError as error:
        sys.stderr.write(f"ttj: {error.args[0]} is not set: this runs in the submitter of a RayJob\n")
        return EXIT_CODES[Cause.SUBMISSION]
    signal.signal(signal.SIGTERM, submitter.on_signal)
    signal.signal(signal.SIGINT, submitter.on_signal)
    termination = _run(submitter)
    with contextlib.suppress(OSError):
        Path(environment.get(names.ENV_TERMINATION_LOG, TERMINATION_LOG)).write_text(termination.to_json())
    if termination.cause is Cause.SUBMISSION:
        sys.stdout.write(f"ttj: {termination.cause}: {termination.message}\n")
    sys.stdout.flush()
    code = EXIT_CODES[termination.cause]
    if code in (EXIT_CODES[Cause.SUBMISSION], EXIT_CODES[Cause.STOPPED]):
        os._exit(code)  # the follower may hang in a stream, and must not hold the process
    return code


def _url(address: str) -> str:
    """KubeRay gives host:port, which Ray's client would take for the address of a GCS."""
    return address if "://" in address else f"http://{address}"
