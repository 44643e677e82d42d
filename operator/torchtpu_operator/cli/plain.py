"""The screen as lines, for files, pipes and CI."""

import sys
import time

from torchtpu_operator.cli.sources import printable
from torchtpu_operator.cli.view import View
from torchtpu_operator.contract.progress import Progress
from torchtpu_operator.local.pods import Plan
from torchtpu_operator.local.screen import PodState

PROGRESS_S = 2.0
MAP_HOSTS = 16


class Plain:
    """Writes to standard output; a reader that went away does not end the run."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._step_at = 0.0
        self._said = ""

    def begin(self, plan: Plan, notes: list[str]) -> None:
        """What will run, what is substituted, the map."""
        self._view = View(plan)
        self._lines(preamble(self._view, notes) + map_lines(self._view))

    def note(self, text: str) -> None:
        """A line of ours."""
        self._lines([f"ttj: {text}"])

    def pod(self, name: str, state: PodState) -> None:
        """Bring-up, a line for each change that matters."""
        if self._view is None:
            return
        self._view.pods[name] = state
        if name == "submitter":
            self.note("the job is submitted")
        elif name == "head":
            self.note(f"head: {state}")
        elif state == "alive":
            self.note(f"hosts: {self._view.alive_hosts()} of {len(self._view.plan.workers)} alive")

    def progress(self, record: Progress) -> None:
        """A line every few seconds, and at the last step."""
        if self._view is None:
            return
        self._view.record = record
        text = self._view.step_text()
        now = time.monotonic()
        due = now - self._step_at >= PROGRESS_S or (record.step is not None and record.step == record.total)
        if text and text != self._said and due:
            self._step_at, self._said = now, text
            self.note(text)

    def log(self, line: str) -> None:
        """A line of the job's."""
        self._lines([line])

    def tick(self) -> None:
        """Nothing moves here."""

    def close(self) -> None:
        """Nothing to put back."""

    @staticmethod
    def _lines(lines: list[str]) -> None:
        try:
            sys.stdout.write("".join(printable(line.replace("\n", "\\n")) + "\n" for line in lines))
            sys.stdout.flush()
        except (OSError, ValueError, AttributeError):  # a pipe that closed, or no standard output at all
            pass


def preamble(view: View, notes: list[str]) -> list[str]:
    """What will run, and what stands for what."""
    spec = view.plan.spec
    many = f"{spec.slices} x " if spec.slices > 1 else ""
    slices = f"{many}{spec.accelerator} {spec.topology}"
    hosts = _count(len(view.plan.workers), "host")
    ranks = _count(view.shape.devices * spec.slices, "rank")
    lines = [f"ttj: {spec.name}: {slices}, {hosts}, {ranks}, on this machine's CPU"]
    lines += [f"ttj: {note}" for note in notes]
    width = min(40, max(len(what) for what, _ in view.plan.substitutions))
    return lines + ["ttj: substituted:"] + [f"  {what:<{width}}  ->  {by}" for what, by in view.plan.substitutions]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def map_lines(view: View) -> list[str]:
    """The slices as they lie: a cell for each host with its ranks."""
    spec, shape = view.plan.spec, view.shape
    lines = []
    addresses = {(pod.slice_id, pod.host): pod.address for pod in view.plan.workers}
    for slice_id in range(spec.slices):
        lines.append(f"slice {slice_id}: rank by device, as the chips lie")
        if shape.hosts > MAP_HOSTS:
            first = slice_id * shape.devices
            lines.append(f"  {shape.hosts} hosts, ranks {first} to {first + shape.devices - 1}")
            continue
        for layer, row in view.host_rows():
            lines += _row(view, slice_id, layer, row, addresses)
    return lines


def _row(view: View, slice_id: int, layer: str, row: list[int], addresses: dict[tuple[int, int], str]) -> list[str]:
    cells = [
        [f"host {host} {addresses[slice_id, host]}"]
        + [" ".join(f"{rank:>3}" for rank in ranks) for ranks in view.device_grid(slice_id, host)]
        for host in row
    ]
    width = max(len(line) for cell in cells for line in cell) + 3
    height = max(map(len, cells))
    return [
        f"  {layer if i == 0 else '':<4}"
        + "".join(f"{cell[i] if i < len(cell) else '':<{width}}" for cell in cells).rstrip()
        for i in range(height)
    ]
