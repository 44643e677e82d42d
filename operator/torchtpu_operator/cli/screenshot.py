"""`python -m torchtpu_operator.cli.screenshot FILE.svg AT -f job.yaml`: the screen of a real run, as a picture.

AT is the step at which the picture is taken. The run goes on to its end, and its exit code is this program's.
"""

import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.measure import Measurement

from torchtpu_operator.cli import run
from torchtpu_operator.cli.live import Live
from torchtpu_operator.contract.progress import Progress

# Rich's own frame would fetch a font from the network.
_SELF_CONTAINED = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


class Camera(Live):
    """The live screen on a recording console."""

    def __init__(self, target: Path, at: int) -> None:
        super().__init__(Console(highlight=False, force_terminal=True, width=110))
        self._target, self._at = target, at

    def progress(self, record: Progress) -> None:
        """Take the picture once."""
        super().progress(record)
        if record.step is not None and record.step >= self._at and not self._target.exists():
            screen = self.picture()
            width = Measurement.get(self.console, self.console.options, screen).maximum
            paper = Console(record=True, width=width, file=sys.stderr, highlight=False)
            paper.print(screen)
            picture = paper.export_svg(title="ttj run", code_format=_SELF_CONTAINED)
            self._target.write_text(picture, encoding="utf-8")


def main() -> int:
    """Arguments as above."""
    target, at, _, source = sys.argv[1:]
    camera = Camera(Path(target), int(at))
    return run.run([source], None, run.Places(), None, camera)


if __name__ == "__main__":
    sys.exit(main())
