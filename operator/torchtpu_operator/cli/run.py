"""`ttj run`: one job on this machine, or with --dry-run only its plan."""

import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtpu_operator.api.model import TorchTPUJob
from torchtpu_operator.cli import sources
from torchtpu_operator.cli.forms import Form
from torchtpu_operator.cli.plain import Plain
from torchtpu_operator.cli.sources import InputError, printable, tell
from torchtpu_operator.contract.termination import Termination
from torchtpu_operator.local.checks import EnvironmentProblem
from torchtpu_operator.local.objects import UnsupportedObject
from torchtpu_operator.local.screen import Screen
from torchtpu_operator.local.tail import Tail
from torchtpu_operator.manifests.rayjob import render

DONE, FAILED, INVALID, ENVIRONMENT = 0, 1, 2, 3
LAST_LINES = 15
_XLA = (
    "framework TorchXLA with several ranks cannot run on CPU: torch_xla's all-reduce between CPU processes gives wrong "
    "numbers without an error. Use a one-device topology (1x1), or --dry-run"
)


@dataclass(frozen=True, slots=True)
class Places:
    """Folders that the user chose."""

    workdir: Path | None = None
    output: Path | None = None


def run(filenames: Sequence[str], name: str | None, places: Places, timeout: float | None, screen: Screen) -> int:
    """Exit code: the job's success 0 or failure 1; 2 invalid input; 3 this machine cannot; 130, 143 interrupted."""
    from torchtpu_operator.local import run as local

    try:
        job, source = _one(filenames, name)
        objects = local_objects(job)
        options = _options(job, source, places, timeout)
    except InputError as error:
        tell(f"error: {error}")
        return INVALID
    except OSError as error:
        tell(f"error: the output folder cannot be made: {error}")
        return ENVIRONMENT
    try:
        outcome = local.run(objects, options, screen)
    except EnvironmentProblem as error:
        tell(f"error: {printable(str(error))}")
        _remove_if_empty(options.output)
        return ENVIRONMENT
    except UnsupportedObject as error:
        tell(f"error: this job cannot run here: {printable(str(error))}")
        _remove_if_empty(options.output)
        return INVALID
    _summary(outcome, options.output)
    return outcome.exit_code


def dry_run(filenames: Sequence[str], name: str | None, form: Form) -> int:
    """The plan of the job as written, for TPU too. Exit code 0, or 2 for invalid input."""
    from torchtpu_operator.cli import plan

    try:
        job, _ = _one(filenames, name)
        text = plan.show(render(job), form)
    except (InputError, ValueError) as error:  # ValueError: an environment that no process can have
        tell(f"error: {error}")
        return INVALID
    sys.stdout.write(text)
    return DONE


def _one(filenames: Sequence[str], name: str | None) -> tuple[TorchTPUJob, str]:
    """The job to run and where it was written. Raises InputError."""
    checked = sources.check(filenames)
    if name is not None:
        checked = [item for item in checked if item.name == name]
        if not checked:
            raise InputError(f"there is no job named {printable(name)}")
    if len(checked) > 1:
        raise InputError(f"there are {len(checked)} jobs, choose one with --name: {', '.join(c.name for c in checked)}")
    item = checked[0]
    lines = [f"{item.place}: {fault}" for fault in item.faults]
    if item.job is None:
        raise InputError("\n".join(lines))
    for line in lines:
        tell(line)
    return item.job, item.source


def local_objects(job: TorchTPUJob) -> list[dict[str, Any]]:
    """The rendered objects of the job with device CPU. Raises InputError."""
    spec = job.spec
    if spec.runtime.framework == "TorchXLA" and spec.tpu.shape.devices * spec.tpu.slices > 1:
        raise InputError(_XLA)
    runtime = spec.runtime.model_copy(update={"device": "CPU"})
    return render(job.model_copy(update={"spec": spec.model_copy(update={"runtime": runtime})}))


def state_folder() -> Path:
    """Where logs of runs and stand-ins for volumes are kept."""
    base = os.environ.get("XDG_STATE_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "ttj"


def _options(job: TorchTPUJob, source: str, places: Places, timeout: float | None) -> Any:
    """Makes the output folder. Raises InputError, OSError."""
    from torchtpu_operator.local.run import Options

    default = Path.cwd() if source == "standard input" else Path(source).parent
    workdir = (places.workdir or default).resolve()
    if not workdir.is_dir():
        raise InputError(f"--workdir {printable(str(workdir))} is not a folder")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    chosen = places.output or state_folder() / "runs" / f"{job.metadata.name}-{stamp}-{os.getpid()}"
    output = chosen.absolute()
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"--output {printable(str(output))} is not an empty folder")
    output.mkdir(parents=True, exist_ok=True)
    return Options(workdir, output, state_folder() / "volumes", timeout)


def screen(wanted: bool) -> Screen:
    """The live screen where it is wanted and there is a terminal, else lines."""
    if wanted and sys.stdout is not None and sys.stdout.isatty():
        from torchtpu_operator.cli.live import Live

        return Live()
    return Plain()


def _summary(outcome: Any, output: Path) -> None:
    """How it ended, why, and where to look."""
    lines = []
    termination: Termination | None = outcome.termination
    if outcome.log:
        last = Tail.last(outcome.log, LAST_LINES)
        if last:
            rank = termination.rank if termination else None
            lines.append(f"last lines of {f'rank {rank}' if rank is not None else outcome.log.name}:")
            lines += [f"  | {line}" for line in last]
    word = "succeeded" if outcome.exit_code == 0 else "failed" if outcome.exit_code == FAILED else "stopped"
    cause = f" ({termination.cause.value})" if termination and outcome.exit_code == FAILED else ""
    lines.append(f"{word} after {outcome.seconds:.1f} s{cause}: {outcome.message}")
    lines.append(f"logs: {output}")
    sys.stdout.write("".join(printable(line) + "\n" for line in lines))
    sys.stdout.flush()


def _remove_if_empty(folder: Path) -> None:
    """Where nothing ran, a folder with nothing but an empty keeper log is no use."""
    files = list(folder.iterdir()) if folder.is_dir() else []
    if all(file.is_file() and file.stat().st_size == 0 for file in files):
        shutil.rmtree(folder, ignore_errors=True)
