"""A Python file over 400 lines fails: a reader should be able to hold a file in mind."""

import subprocess
import sys
from pathlib import Path

LIMIT = 400


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"], capture_output=True, text=True, check=True
    )
    long = {
        p: n for p in listed.stdout.split() if Path(p).exists() and (n := len(Path(p).read_text().splitlines())) > LIMIT
    }
    for path, lines in long.items():
        print(f"{path}: {lines} lines, at most {LIMIT}: split it")
    return 1 if long else 0


if __name__ == "__main__":
    sys.exit(main())
