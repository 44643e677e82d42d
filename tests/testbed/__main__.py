"""`python -m tests.testbed up|down|status`: a cluster to work with by hand, which stays until it is taken down."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

from tests.testbed.cache import TestbedError, cache
from tests.testbed.controlplane import ControlPlane, Options, control_plane
from tests.testbed.images.build import RUNTIME, RUNTIME_CPU
from tests.testbed.node.nodes import cluster
from tests.testbed.pools import cpu_pool, tpu_pool

from torchtpu_operator.local.processes import start_time
from torchtpu_operator.tpu.slices import slice_shape

START_S = 3600.0  # the first start builds everything
STOP_S = 60.0


def main() -> int:
    """Exit code: 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="python -m tests.testbed", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, text in (("up", "start a cluster in the background"), ("serve", "the same in the foreground")):
        verb = verbs.add_parser(name, help=text)
        verb.add_argument("--kueue", action="store_true", help="with Kueue")
        verb.add_argument(
            "--nodes", type=int, default=0, choices=range(5), metavar="N",
            help="N real v6e hosts (1 to 4) and one for heads, in place of KWOK's nodes; needs root and Debian",
        )  # fmt: skip
    verbs.add_parser("down", help="end it; nothing is left")
    verbs.add_parser("status", help="say whether one runs, and where")
    arguments = parser.parse_args()
    try:
        return _run(arguments)
    except (TestbedError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
    return 1


def _run(arguments: argparse.Namespace) -> int:
    if arguments.verb == "up":
        return _up(arguments)
    if arguments.verb == "serve":
        return _serve(arguments)
    state = _state()
    if arguments.verb == "down":
        return _down(state)
    sys.stdout.write(f"KUBECONFIG={state['kubeconfig']}\n" if state else "no cluster runs\n")
    return 0 if state else 1


def _file() -> Path:
    return cache() / "cluster.json"


def _state() -> dict[str, str] | None:
    """The running cluster's record; that of a dead one is removed."""
    try:
        state: dict[str, str] = json.loads(_file().read_text())
        if start_time(int(state["pid"])) == state["started"]:
            return state
    except (OSError, ValueError, KeyError, TypeError):
        pass
    _file().unlink(missing_ok=True)
    return None


def _up(arguments: argparse.Namespace) -> int:
    if state := _state():
        raise TestbedError(
            f"a cluster runs already, with KUBECONFIG={state['kubeconfig']}; end it with make cluster-down"
        )
    log = cache() / "cluster.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    options = [f"--nodes={arguments.nodes}", *(["--kueue"] if arguments.kueue else [])]
    command = [sys.executable, "-m", "tests.testbed", "serve", *options]
    with log.open("w") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
    with log.open() as lines:
        deadline = time.monotonic() + START_S
        try:
            while not (state := _state()):
                sys.stderr.write(lines.read())
                if server.poll() is not None:
                    raise TestbedError(f"the cluster did not start; see above, or {log}")
                if time.monotonic() > deadline:
                    raise TestbedError(f"the cluster did not start in {START_S / 60:.0f} min; see {log}")
                time.sleep(0.1)
        except BaseException:
            server.terminate()
            server.wait()
            raise
    sys.stdout.write(f"export KUBECONFIG={state['kubeconfig']}\n")
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    """Until SIGTERM or SIGINT, or a component's end."""
    stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: _stop(stop))
    with _level(arguments) as plane:
        own = {"pid": str(os.getpid()), "started": start_time(os.getpid()), "kubeconfig": str(plane.kubeconfig)}
        temporary = _file().with_suffix(".new")
        temporary.write_text(json.dumps(own))
        temporary.replace(_file())
        try:
            while not stop:
                plane.processes.check(*plane.running)
                time.sleep(0.2)
        finally:
            _file().unlink(missing_ok=True)
    return 0


def _level(arguments: argparse.Namespace) -> AbstractContextManager[ControlPlane]:
    if not arguments.nodes:
        return control_plane(Options(kueue=arguments.kueue))
    pools = [*cpu_pool(), *tpu_pool("v6e", slice_shape("v6e", "4x4"))[: arguments.nodes]]
    return cluster(pools, [RUNTIME, RUNTIME_CPU], kueue=arguments.kueue)


def _stop(stop: list[int]) -> None:
    """While starting, an exception is what ends it; later the loop looks at the list."""
    stop.append(1)
    if not _file().exists():
        raise KeyboardInterrupt


def _down(state: dict[str, str] | None) -> int:
    if not state:
        sys.stderr.write("no cluster runs\n")
        return 0
    os.kill(int(state["pid"]), signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while start_time(int(state["pid"])) == state["started"]:
        if time.monotonic() > deadline:
            raise TestbedError(f"the cluster's process {state['pid']} did not end in {STOP_S:.0f} s")
        time.sleep(0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
