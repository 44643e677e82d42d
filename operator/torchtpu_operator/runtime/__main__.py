"""`python -m torchtpu_operator.runtime VERB`: what the containers of a job run."""

import argparse
import logging
import os
import sys
from pathlib import Path

from torchtpu_operator.contract import names


def main() -> int:
    """Run one verb; the exit code is the container's."""
    parser = argparse.ArgumentParser(prog=f"python -m {names.RUNTIME_MODULE}", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    install = verbs.add_parser("install", help="init container: write runtime and files into a shared volume")
    install.add_argument("--target", type=Path, default=Path(names.RUNTIME_PATH))
    verbs.add_parser("submit", help="submitter: hand the job to Ray once, follow it, end as it ends")
    verbs.add_parser("drive", help="Ray job on the head: start and supervise the ranks")
    stop = verbs.add_parser("stop", help="preStop hook: stop what runs in this pod and wait")
    stop.add_argument("--timeout", type=float, default=45.0, metavar="SECONDS")
    arguments = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="ttj: %(levelname)s: %(message)s")
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    # Imported late: init container and preStop hook need no Ray.
    if arguments.verb == "install":
        from torchtpu_operator.runtime.install import InstallError, install

        try:
            install(arguments.target, os.environ)
        except (InstallError, OSError) as error:
            sys.stderr.write(f"ttj: cannot install the runtime: {error}\n")
            return 1
        return 0
    if arguments.verb == "stop":
        from torchtpu_operator.runtime.markers import stop

        return 0 if stop(Path(os.environ.get(names.ENV_RUN_DIR, names.RUN_PATH)), arguments.timeout) else 1
    if arguments.verb == "drive":
        from torchtpu_operator.runtime.driver import drive

        return drive(os.environ)
    from torchtpu_operator.runtime.submit import submit

    return submit(os.environ)


if __name__ == "__main__":
    sys.exit(main())
