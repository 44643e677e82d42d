import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

JOB = """
apiVersion: torchtpu.dev/v1alpha1
kind: TorchTPUJob
metadata: {{name: {name}}}
spec:
  tpu: {tpu}
  runtime:
    image: registry.example/train:1
    entrypoint: {entrypoint}
"""


class Ttj:
    """`ttj run` in a folder of its own. Everything it starts inherits XDG_STATE_HOME, and is found by that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []
        self.folders: set[Path] = set()  # scratch folders seen so far

    def start(self, script: str, tpu: str, *options: str, name: str = "tiny") -> subprocess.Popen[str]:
        (self.folder / f"{name}.py").write_text(script)
        entrypoint = f'["python", "{name}.py"]'
        (self.folder / f"{name}.yaml").write_text(JOB.format(name=name, tpu=tpu, entrypoint=entrypoint))
        process = subprocess.Popen(
            [sys.executable, "-m", "torchtpu_operator.cli", "run", "-f", f"{name}.yaml", *options],
            cwd=self.folder,
            env={**os.environ, "XDG_STATE_HOME": str(self.folder / "state")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def alive(self) -> dict[int, str]:
        """Processes of this folder's runs, but for `ttj` itself, by pid."""
        mark = f"XDG_STATE_HOME={self.folder / 'state'}".encode()
        own = {process.pid for process in self.processes}
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in own:
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0") or self._open(entry):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def _open(self, process: Path) -> bool:
        """Whether it has a file of a known scratch folder open: Ray writes titles over its processes' environment."""
        links = [os.readlink(link) for link in (process / "fd").iterdir()]
        return any(link.startswith(f"{folder}/") for link in links for folder in self.folders)

    def scratch(self) -> set[Path]:
        """Scratch folders of the runs that have a keeper."""
        found = {Path(command.split()[-1]) for command in self.alive().values() if "local.keeper" in command}
        self.folders |= found
        return found


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)


def output_until(process: subprocess.Popen[str], text: str) -> str:
    """Output up to the line that has `text`."""
    seen = []
    assert process.stdout is not None
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return "".join(seen)
    raise AssertionError("".join(seen))
