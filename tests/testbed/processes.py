"""The bed's processes: children of a keeper that ends them however the bed's own process ends."""

import contextlib
import os
import shutil
import ssl
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.testbed.cache import TestbedError, cache, say

from torchtpu_operator.local.checks import EnvironmentProblem
from torchtpu_operator.local.pods import ENV_MARK, Command
from torchtpu_operator.local.processes import start_time
from torchtpu_operator.local.supervisor import Supervisor
from torchtpu_operator.local.tail import Tail

STEP_S = 0.05
KEPT_LOGS = 5  # folders of beds that failed


class Processes:
    """Named processes with a log each. `folder` is the bed's data, gone at the end; `logs` stay if it fails."""

    def __init__(self, supervisor: Supervisor, logs: Path) -> None:
        self._supervisor = supervisor
        self.folder = supervisor.scratch
        self.logs = logs

    def start(self, name: str, *argv: str | Path, env: Mapping[str, str] | None = None) -> None:
        """Start a process in the bed's folder, with this one's environment and `env`."""
        environment = {**os.environ, **(env or {}), ENV_MARK: str(self.folder)}
        self._supervisor.start(name, Command(tuple(map(str, argv)), environment, str(self.folder)), self.log(name))

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self.logs / f"{name}.log"

    def stop(self, name: str, timeout_s: float = 20) -> None:
        """SIGTERM, and wait for its end. Raises TestbedError if it stays."""
        self._supervisor.terminate(name)
        deadline = time.monotonic() + timeout_s
        while not self._supervisor.ended(name):
            self._supervisor.poll(STEP_S)
            if time.monotonic() > deadline:
                raise TestbedError(f"{name} did not end within {timeout_s:g} s of SIGTERM")

    def check(self, *names: str) -> None:
        """Raises TestbedError if one of the processes has ended."""
        try:
            self._supervisor.poll(0)
        except EnvironmentProblem as error:
            raise TestbedError(str(error)) from None
        for name in names:
            if self._supervisor.ended(name):
                why = self._supervisor.failed.get(name) or f"code {self._supervisor.codes[name]}"
                raise TestbedError(f"{name} ended ({why}); {self.log(name)} ends with:{self._end(name)}")

    def wait(
        self, ready: Callable[[], bool], what: str, *names: str, timeout_s: float = 120, every_s: float = STEP_S
    ) -> None:
        """Until `ready`. Raises TestbedError when one of the processes ends, or time is up."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            self.check(*names)
            if time.monotonic() > deadline:
                ends = "".join(f"\n{self.log(name)} ends with:{self._end(name)}" for name in names)
                raise TestbedError(f"{what} did not come within {timeout_s:g} s{ends}")
            time.sleep(every_s)

    def _end(self, name: str) -> str:
        return "".join(f"\n  {line}" for line in Tail.last(self.log(name), 8))


def _runs(logs: Path) -> bool:
    """Whether the bed that writes there lives."""
    try:
        pid, started = (logs / "owner").read_text().split()
    except (OSError, ValueError):
        return False
    return start_time(int(pid)) == started


@contextlib.contextmanager
def processes(name: str) -> Iterator[Processes]:
    """A place for processes. Afterwards none is left; logs are kept, and their place is said, if the body raised."""
    base = cache() / "logs"
    base.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder for folder in base.iterdir() if not _runs(folder))[:-KEPT_LOGS]:
        shutil.rmtree(old, ignore_errors=True)
    logs = Path(tempfile.mkdtemp(prefix=f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-", dir=base))
    (logs / "owner").write_text(f"{os.getpid()} {start_time(os.getpid())}")
    try:
        with Supervisor(logs / "keeper.log") as supervisor:
            yield Processes(supervisor, logs)
    except BaseException:
        say(f"the bed's logs are in {logs}")
        raise
    shutil.rmtree(logs, ignore_errors=True)


def answers(url: str, authority: Path | None = None, token: str = "") -> bool:
    """Whether a GET is answered with 200."""
    context = ssl.create_default_context(cafile=str(authority)) if authority else None
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    handlers = [urllib.request.ProxyHandler({})]
    if context:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
