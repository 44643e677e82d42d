import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runtime.local.running import Ttj, until


@pytest.fixture
def ttj(tmp_path: Path) -> Iterator[Ttj]:
    runner = Ttj(tmp_path)
    yield runner
    for process in runner.processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
    until(lambda: not runner.alive())
