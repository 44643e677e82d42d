"""The process that all pods of a local run are children of: when `ttj run` is gone, for whatever reason, it clears up.

It takes JSON lines on standard input: `start` (id, argv, env, cwd, log), `signal` (id, number), `stop` (grace_s).
It reports on standard output: `started` (id, pid), `exited` (id, code; negative: a signal), `failed` (id, message).
The end of the input, SIGTERM and `stop` all end every descendant and remove the scratch folder. As a subreaper it
inherits what its children leave behind; should it be killed itself, the kernel tells its children (PDEATHSIG).
"""

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchtpu_operator.local import processes
from torchtpu_operator.runtime.processes import descendants

OWNER_FILE = "owner"  # in the scratch folder: pid and start time of who clears it up
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_S = 12.0  # where `ttj run` vanished: longer than the grace of the ranks
STEP_S = 0.05

_LIBC = ctypes.CDLL(None, use_errno=True)


def own(scratch: Path) -> None:
    """Say that this process clears the folder up."""
    temporary = scratch / f".{OWNER_FILE}"
    temporary.write_text(f"{os.getpid()} {processes.start_time(os.getpid())}")
    temporary.replace(scratch / OWNER_FILE)


def sweep(parent: Path, prefix: str, variable: str) -> list[Path]:
    """Clear up after runs of this user whose keeper was killed. Returns the folders that were removed."""
    removed = []
    for folder in parent.glob(f"{prefix}*"):
        try:
            status, text = folder.lstat(), (folder / OWNER_FILE).read_text()
            pid, started = text.split()
        except (OSError, ValueError):
            continue
        ours = status.st_uid == os.getuid() and not folder.is_symlink() and pid.isdigit()
        if ours and processes.start_time(int(pid)) != started:
            processes.signal_all(processes.marked(variable, folder), signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


class Keeper:
    """Single-threaded: PDEATHSIG counts from the thread that started a child."""

    def __init__(self, scratch: Path, lost_s: float) -> None:
        self.scratch, self._lost_s = scratch, lost_s
        self.ids: dict[int, str] = {}  # pid: id
        self.grace: float | None = None
        self._wake, wake = os.pipe()
        for end in (self._wake, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)

    def _on_term(self, *_: object) -> None:
        self.grace = self._lost_s

    def run(self) -> None:
        """Serve requests until told to stop, then leave nothing behind."""
        os.set_blocking(0, False)
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            requests = self._requests()
            while self.grace is None:
                selector.select()
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                for request in next(requests):
                    self._take(request)
                self._reap()
        self._end(self.grace)

    def _requests(self) -> Iterator[list[dict[str, Any]]]:
        """Each step: the requests that have arrived. The end of the input is a stop with grace."""
        rest = b""
        while True:
            lines: list[bytes] = []
            try:
                data = os.read(0, 1 << 20)
                *lines, rest = (rest + data).split(b"\n")
                if not data:
                    self.grace = self._lost_s
            except BlockingIOError:
                pass
            yield [json.loads(line) for line in lines if line]

    def _take(self, request: dict[str, Any]) -> None:
        if request["op"] == "start":
            self._start(request)
        elif request["op"] == "signal":
            pids = [pid for pid, name in self.ids.items() if name == request["id"]]
            processes.signal_all(pids, signal.Signals(request["number"]))
        else:
            self.grace = request["grace_s"]

    def _start(self, request: dict[str, Any]) -> None:
        try:
            with open(request["log"], "ab") as log:
                process = subprocess.Popen(
                    request["argv"],
                    env=request["env"],
                    cwd=request["cwd"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )
        except OSError as error:
            self._report(event="failed", id=request["id"], message=str(error))
            return
        process.returncode = 0  # reaped below, with all other children
        self.ids[process.pid] = request["id"]
        self._report(event="started", id=request["id"], pid=process.pid)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid in self.ids:
                    self._report(event="exited", id=self.ids.pop(pid), code=os.waitstatus_to_exitcode(status))

    def _report(self, **event: object) -> None:
        with contextlib.suppress(OSError):
            os.write(1, json.dumps(event).encode() + b"\n")

    def _end(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL until nothing is left."""
        deadline = time.monotonic() + grace_s
        if grace_s > 0:
            processes.signal_all(descendants(os.getpid()), signal.SIGTERM)
        while alive := descendants(os.getpid()):
            if time.monotonic() >= deadline:
                processes.signal_all(alive, signal.SIGKILL)
            time.sleep(STEP_S)
            self._reap()
        self._reap()
        shutil.rmtree(self.scratch, ignore_errors=True)
        if self.scratch.exists():  # something was just being written
            shutil.rmtree(self.scratch, ignore_errors=True)


def _die_with_parent() -> None:
    """In the child: SIGTERM when the keeper dies; `ray start` takes its whole node along."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> None:
    """`python -m torchtpu_operator.local.keeper SCRATCH [GRACE]`."""
    scratch = Path(sys.argv[1])
    keeper = Keeper(scratch, float(sys.argv[2]) if len(sys.argv) > 2 else GRACE_S)
    own(scratch)
    keeper.run()


if __name__ == "__main__":
    main()
