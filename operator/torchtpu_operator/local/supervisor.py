"""This side of the keeper: starting and watching the processes of a run, and clearing up after it."""

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from torchtpu_operator.local import processes
from torchtpu_operator.local.checks import EnvironmentProblem
from torchtpu_operator.local.keeper import own, sweep
from torchtpu_operator.local.pods import ENV_MARK, Command

SCRATCH_PARENT, SCRATCH_PREFIX = Path("/tmp"), "ttj-"  # noqa: S108 - sockets below it need a short path; mode 0700
KEEPER_END_S = 30.0


class Supervisor:
    """Owns the scratch folder and the keeper; leaving the context leaves nothing behind."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._rest = b""
        self.codes: dict[str, int] = {}  # id: exit code, once it has ended
        self.failed: dict[str, str] = {}  # id: why it could not be started
        self.swept = sweep(SCRATCH_PARENT, SCRATCH_PREFIX, ENV_MARK)
        self.scratch = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=SCRATCH_PARENT))
        own(self.scratch)  # until the keeper does

    def __enter__(self) -> "Supervisor":
        package = str(Path(__file__).parents[2])
        environment = {**os.environ, "PYTHONPATH": package}
        with self._log.open("ab") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "torchtpu_operator.local.keeper", str(self.scratch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for `ttj`, which then tells the keeper
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._send(op="stop", grace_s=0)
        with contextlib.suppress(OSError):
            assert self._keeper.stdin is not None  # noqa: S101
            self._keeper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(KEEPER_END_S)
        if self._keeper.poll() is None:
            self._keeper.kill()
            self._keeper.wait()
        assert self._keeper.stdout is not None  # noqa: S101
        self._keeper.stdout.close()
        while left := processes.marked(ENV_MARK, self.scratch):  # only where the keeper was killed
            processes.signal_all(left, signal.SIGKILL)
            time.sleep(0.05)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def start(self, name: str, command: Command, log: Path) -> None:
        """Start a process; its end shows in `codes`."""
        self._send(op="start", id=name, argv=command.argv, env=dict(command.env), cwd=command.cwd, log=str(log))

    def terminate(self, name: str) -> None:
        """SIGTERM to one process."""
        self._send(op="signal", id=name, number=int(signal.SIGTERM))

    def ended(self, name: str) -> bool:
        """Whether it ended or could not be started."""
        return name in self.codes or name in self.failed

    def poll(self, timeout_s: float) -> None:
        """Take the keeper's reports; returns at the first or at the timeout. Raises EnvironmentProblem without it."""
        assert self._keeper.stdout is not None  # noqa: S101
        with selectors.DefaultSelector() as selector:
            selector.register(self._keeper.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return
        data = os.read(self._keeper.stdout.fileno(), 1 << 16)
        if not data:
            raise EnvironmentProblem("the process that watches over this run was killed; everything it ran was ended")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["event"] == "exited":
                self.codes[event["id"]] = event["code"]
            elif event["event"] == "failed":
                self.failed[event["id"]] = event["message"]

    def _send(self, **request: object) -> None:
        assert self._keeper.stdin is not None  # noqa: S101
        with contextlib.suppress(OSError):  # its end is noticed by poll()
            self._keeper.stdin.write(json.dumps(request).encode() + b"\n")
            self._keeper.stdin.flush()
