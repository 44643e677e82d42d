"""What a local run tells the person in front of it. The command line has the implementations."""

from typing import Literal, Protocol

from torchtpu_operator.contract.progress import Progress
from torchtpu_operator.local.pods import Plan

PodState = Literal["waiting", "starting", "alive", "ended"]


class Screen(Protocol):
    """Calls come from one thread. Text of `log` is the user's program's and may hold anything."""

    def begin(self, plan: Plan, notes: list[str]) -> None:
        """Before the first process starts: what will run, and what is substituted."""

    def note(self, text: str) -> None:
        """Something about the run, as a sentence."""

    def pod(self, name: str, state: PodState) -> None:
        """A head, host or submitter changed."""

    def progress(self, record: Progress) -> None:
        """The driver's latest record."""

    def log(self, line: str) -> None:
        """One line of the job's log."""

    def tick(self) -> None:
        """Some tenths of a second have passed."""

    def close(self) -> None:
        """Nothing more comes but the outcome."""
