"""The screen on a terminal: slices as a map, bring-up, a progress bar; the job's log scrolls above."""

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from torchtpu_operator.cli.plain import MAP_HOSTS, preamble
from torchtpu_operator.cli.sources import printable
from torchtpu_operator.cli.view import View
from torchtpu_operator.contract.progress import Progress
from torchtpu_operator.local.pods import Plan
from torchtpu_operator.local.screen import PodState

REDRAW_S = 0.2
_RANK = {"waiting": "dim", "running": "bold green", "done": "bold cyan", "failed": "bold white on red"}
_HOST = {"waiting": "dim", "starting": "yellow", "alive": "green", "ended": "red"}


class Live:
    """All text goes through `Text`, so that nothing of the user's is read as markup."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._view: View | None = None
        self._live: RichLive | None = None
        self._began = time.monotonic()
        self._drawn = 0.0

    def begin(self, plan: Plan, notes: list[str]) -> None:
        """What will run and what is substituted; then the map."""
        self._view = View(plan)
        for line in preamble(self._view, notes):
            self._print(line, "dim")
        self._live = RichLive(console=self.console, auto_refresh=False, transient=False)
        self._live.start()
        self.tick()

    def note(self, text: str) -> None:
        """A line of ours."""
        self._print(f"ttj: {text}", "bold")

    def pod(self, name: str, state: PodState) -> None:
        """Colours the map."""
        if self._view:
            self._view.pods[name] = state

    def progress(self, record: Progress) -> None:
        """Moves the bar."""
        if self._view:
            self._view.record = record

    def log(self, line: str) -> None:
        """A line of the job's, its prefix in colour."""
        text = Text(printable(line.replace("\n", "\\n")))
        if line.startswith("["):
            text.stylize("cyan", 0, line.find("]") + 1)
        self.console.print(text, soft_wrap=True)

    def tick(self) -> None:
        """Draw, a few times a second."""
        if self._live and time.monotonic() - self._drawn >= REDRAW_S:
            self._drawn = time.monotonic()
            self._live.update(self.picture(), refresh=True)

    def close(self) -> None:
        """Draw the last state and give the terminal back."""
        if self._live:
            self._live.update(self.picture(), refresh=True)
            self._live.stop()
            self._live = None

    def _print(self, text: str, style: str) -> None:
        self.console.print(Text(printable(text), style=style), soft_wrap=True)

    def picture(self) -> RenderableType:
        """Map, bring-up and bar."""
        view = self._view
        if view is None:
            return Text("")
        slices = Table.grid(padding=(0, 2))
        slices.add_row(*(self._slice(view, number) for number in range(min(view.plan.spec.slices, 4))))
        return Panel(Group(slices, self._steps(view), self._bar(view)), title=Text(view.plan.spec.name), expand=False)

    def _slice(self, view: View, slice_id: int) -> RenderableType:
        states = view.rank_states()
        grid = Table.grid(padding=0)
        if view.shape.hosts > MAP_HOSTS:
            alive = sum(view.pods.get(p.name) == "alive" for p in view.plan.workers if p.slice_id == slice_id)
            return Text(f"slice {slice_id}: {alive} of {view.shape.hosts} hosts")
        for _, row in view.host_rows():
            grid.add_row(*(self._host(view, slice_id, host, states) for host in row))
        return Group(Text(f"slice {slice_id}: {view.plan.spec.accelerator} {view.plan.spec.topology}"), grid)

    def _host(self, view: View, slice_id: int, host: int, states: dict[int, str]) -> RenderableType:
        state = view.pods.get(f"slice-{slice_id}-host-{host}", "waiting")
        text = Text()
        for i, row in enumerate(view.device_grid(slice_id, host)):
            text.append("\n" if i else "")
            for rank in row:
                text.append(f"{rank:>3}", _RANK.get(states.get(rank, "waiting"), ""))
                text.append(" ")
        return Panel(text, title=Text(f"host {host}"), border_style=_HOST[state], padding=(0, 1))

    def _steps(self, view: View) -> RenderableType:
        ranks = list(view.rank_states().values())
        counts = ", ".join(f"{ranks.count(s)} {s}" for s in _RANK if ranks.count(s))
        record = view.record
        phase = f"{record.phase.lower()}  ranks: {counts or 'none yet'}" if record else "bringing up Ray"
        text = Text(f"head {view.pods.get('head', 'waiting')}   ", _HOST[view.pods.get("head", "waiting")])
        text.append(f"hosts {view.alive_hosts()}/{len(view.plan.workers)}   ", "green")
        text.append(f"{phase}   {time.monotonic() - self._began:.0f} s", "default")
        return text

    def _bar(self, view: View) -> RenderableType:
        record = view.record
        if record is None or record.step is None:
            return Text(printable(record.message)[:100] if record and record.phase != "Ended" else "", style="dim")
        row = Table.grid(padding=(0, 1))
        if record.total:
            row.add_row(ProgressBar(total=record.total, completed=record.step, width=30), Text(view.step_text()))
        else:
            row.add_row(Text(view.step_text()))
        return row
