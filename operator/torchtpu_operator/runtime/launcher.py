"""Starts, watches and stops the ranks of one host: `python -m torchtpu_operator.runtime.launcher`.

Started by the host's agent; single-threaded and standard library only, so that forking is safe and start-up is quick.
Standard input: one JSON request, then `stop`; its end means the agent is gone and stops the ranks too.
Standard output: events as JSON lines (`started`, `exited`, `failed`, `rotated`, `stopping`, `done`); `at` is the
machine's monotonic clock in seconds. After `done` no process that the ranks ever started is left.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from torchtpu_operator.runtime import markers
from torchtpu_operator.runtime.output import LOG_LIMIT, PodLog, RankLog
from torchtpu_operator.runtime.processes import descendants

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
READ_BYTES = 65536
DRAIN_BYTES = 1024 * 1024  # read at most after a rank's end: a pipe holds 64 KiB, a forked child may write for ever
SWEEP_S = 10.0  # how long descendants are killed before giving up (uninterruptible sleep)

_libc = ctypes.CDLL(None, use_errno=True)


class Rank:
    """One started rank: its process, the pipe it writes to, and its log. `code` is None while it runs."""

    def __init__(self, request: dict[str, Any], log_limit: int) -> None:
        self.number: int = request["rank"]
        self.log = RankLog(Path(request["log"]), log_limit)
        self.code: int | None = None
        self.pipe, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.pipe, False)
        try:
            self.process = subprocess.Popen(
                request["argv"],
                cwd=request["cwd"],
                env=request["env"],
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
                preexec_fn=self._die_with(os.getpid()),
            )
        finally:
            os.close(write_end)

    @staticmethod
    def _die_with(launcher: int) -> Any:
        def prepare() -> None:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:  # it died before the line above
                os.kill(os.getpid(), signal.SIGKILL)

        return prepare

    def signal(self, number: int) -> None:
        """Signal the rank's process group while the rank runs."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)


class Launcher:
    """The loop. `request`: ranks, grace_s, run_dir, and optionally pod_stdout, log_limit."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.grace_s = float(request["grace_s"])
        self.run_dir = Path(request["run_dir"])
        self.wanted: list[dict[str, Any]] = request["ranks"]
        self.log_limit = int(request.get("log_limit") or LOG_LIMIT)
        self.pod_log = PodLog(request.get("pod_stdout"))
        self.ranks: dict[int, Rank] = {}  # by pid
        self.kill_at: float | None = None  # set while stopping
        self.selector = selectors.DefaultSelector()

    def emit(self, event: str, **fields: Any) -> None:
        """Tell the agent; without one nobody listens, and the ranks are being stopped anyway."""
        line = json.dumps({"event": event, "at": time.monotonic(), **fields}) + "\n"
        with contextlib.suppress(OSError):
            os.write(1, line.encode())

    def run(self) -> None:
        """Start all ranks and return when nothing of them is left."""
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.stop("signal"))
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        os.set_blocking(0, False)
        self.selector.register(wake_read, selectors.EVENT_READ, "wake")
        self.selector.register(0, selectors.EVENT_READ, "command")
        with markers.busy(self.run_dir):
            self.start()
            while any(rank.code is None for rank in self.ranks.values()):
                self.step()
            self.sweep()
            self.pod_log.flush()
        self.emit("done")

    def start(self) -> None:
        """Start every rank; one that cannot be started stops the others."""
        for request in self.wanted:
            try:
                rank = Rank(request, self.log_limit)
            except OSError as error:
                reason = "failed to start: " + (error.strerror or str(error))
                self.emit("failed", rank=request["rank"], errno=error.errno, message=reason)
                self.stop("failed")
                return
            self.ranks[rank.process.pid] = rank
            self.selector.register(rank.pipe, selectors.EVENT_READ, rank)
            self.emit("started", rank=rank.number, pid=rank.process.pid)

    def step(self) -> None:
        """One turn of the loop, at most markers.POLL_S long."""
        for key, _ in self.selector.select(0.05 if self.pod_log.pending else markers.POLL_S):
            if isinstance(key.data, Rank):
                self.read(key.data, READ_BYTES)
            elif key.data == "command":
                self.command()
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 4096)
        self.reap()
        self.pod_log.flush()
        if self.kill_at is None and markers.stop_requested(self.run_dir):
            self.stop("marker")
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self.signal(signal.SIGKILL)

    def command(self) -> None:
        """Read a command, or the end of the agent."""
        with contextlib.suppress(BlockingIOError):
            if not os.read(0, 4096):
                self.selector.unregister(0)
                self.stop("agent")
            else:
                self.stop("command")  # there is no other command

    def stop(self, reason: str) -> None:
        """SIGTERM now, SIGKILL after the grace; only the first call counts."""
        if self.kill_at is None:
            self.kill_at = time.monotonic() + self.grace_s
            self.emit("stopping", reason=reason)
            self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Signal the process group of every rank that runs."""
        for rank in self.ranks.values():
            rank.signal(number)

    def read(self, rank: Rank, limit: int) -> None:
        """Move output of a rank to its logs, at most `limit` bytes."""
        while limit > 0:
            try:
                data = os.read(rank.pipe, min(limit, READ_BYTES))
            except BlockingIOError:
                return
            if not data:
                with contextlib.suppress(KeyError):
                    self.selector.unregister(rank.pipe)
                return
            limit -= len(data)
            if rank.log.write(data):
                self.emit("rotated", rank=rank.number, base=rank.log.base)
            self.pod_log.write(rank.number, data)

    def reap(self) -> None:
        """Collect every child that ended, orphans of ranks among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if rank := self.ranks.get(pid):
                code = rank.process.returncode = os.waitstatus_to_exitcode(status)
                at = time.monotonic()
                self.read(rank, DRAIN_BYTES)
                self.pod_log.finish(rank.number)
                rank.code = code
                self.emit("exited", rank=rank.number, code=code, at=at, stopping=self.kill_at is not None)

    def sweep(self) -> None:
        """Kill whatever the ranks left behind, in whatever session."""
        deadline = time.monotonic() + SWEEP_S
        while time.monotonic() < deadline:
            self.reap()
            left = descendants(os.getpid())
            if not left:
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for rank in self.ranks.values():
            self.read(rank, DRAIN_BYTES)
            self.pod_log.finish(rank.number)
            rank.log.close()


def main() -> None:
    """Detach, read the request from standard input and run.

    A Ray worker that exits kills its children (kill_child_processes_on_worker_exit), and raylet its process group: only
    a grandchild in its own session can give the ranks their grace.
    """
    if os.fork():
        os._exit(0)
    os.setsid()
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1024 * 1024)
        if not piece:
            sys.exit(2)
        line += piece
    Launcher(json.loads(line)).run()


if __name__ == "__main__":
    main()
