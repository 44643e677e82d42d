"""One agent per host: a Ray actor that holds the host's TPU resources and talks to the launcher below it.

It imports no torch and starts no rank itself: its process is Ray's, with threads and Ray's environment.
"""

import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchtpu_operator.contract import names, ports
from torchtpu_operator.runtime.output import LOG_LIMIT, read_log
from torchtpu_operator.runtime.plan import ENV_ERROR_FILE, child_environment, rank_file

POLL_STEP_S = 0.1
REPORT_BYTES = 16 * 1024
ERROR_BYTES = 1024 * 1024


def container_environment() -> dict[str, str]:
    """The environment that the container was started with.

    Ray changes that of its workers (OMP_NUM_THREADS, TPU_VISIBLE_CHIPS, LD_PRELOAD, PYTHONBREAKPOINT …). `ray start
    --block`, which KubeRay runs, stays the raylet's parent and has the original; without it the raylet's is next best.
    """
    raylet = os.environ.get("RAY_RAYLET_PID") or str(os.getppid())
    try:
        stat = Path(f"/proc/{raylet}/stat").read_text()
        parent = stat[stat.rindex(")") + 2 :].split()[1]
        command = Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0")
        by_ray_start = b"start" in command and b"--block" in command
        source = parent if by_ray_start else raylet
        environment = dict(
            entry.split("=", 1)
            for entry in os.fsdecode(Path(f"/proc/{source}/environ").read_bytes()).split("\0")
            if "=" in entry
        )
    except (OSError, ValueError):
        return dict(os.environ)
    if not by_ray_start and "jemalloc" in environment.get("LD_PRELOAD", ""):
        del environment["LD_PRELOAD"]  # Ray's own, for the raylet
    return environment


def entrypoint_fault(argv: Sequence[str], cwd: str, environment: Mapping[str, str]) -> str | None:
    """What is wrong with the entrypoint on this host, as a sentence; None if it can be started."""
    if not os.path.isdir(cwd):
        return f"the working directory {cwd} does not exist"
    program = argv[0]
    # As exec does: a path with a slash is relative to the working directory, another is looked up in PATH.
    if "/" in program:
        found = shutil.which(os.path.join(cwd, program))
    else:
        found = shutil.which(program, path=environment.get("PATH", os.defpath))
    if not found:
        return f"the entrypoint's program {program!r} is not there or not executable (working directory {cwd})"
    script = _python_script(argv)
    if script and not os.path.exists(os.path.join(cwd, script)):
        return f"the entrypoint's script {script!r} does not exist (working directory {cwd})"
    return None


def _python_script(argv: Sequence[str]) -> str | None:
    """The script that `python [flags] script …` names; None for -m, -c, options that take a value, other programs."""
    if not os.path.basename(argv[0]).startswith("python"):
        return None
    for word in argv[1:]:
        if not word.startswith("-"):
            return word
        if word == "-" or word.startswith("--") or set(word) & set("mcXW"):
            return None
    return None


def free_port(preferred: int) -> int:
    """The preferred port if it is free on all addresses, else any free one."""
    for port in (preferred, 0):
        with socket.socket(socket.AF_INET) as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            return int(probe.getsockname()[1])
    return preferred


class Agent:
    """The actor. Methods run in threads: `poll` may wait while `stop` is called."""

    def __init__(self) -> None:
        self._environment = container_environment()
        self._run_dir = self._environment.get(names.ENV_RUN_DIR, names.RUN_PATH)
        self._launcher: subprocess.Popen[bytes] | None = None
        self._events: list[dict[str, Any]] = []  # kept, so that a lost answer loses no event
        self._pids: dict[int, int] = {}
        self._bases: dict[int, list[int]] = {}  # rank: offsets at which the previous and the current log file begin
        self._reports: dict[int, str] = {}

    def facts(self) -> dict[str, Any]:
        """What the driver must know of this host."""
        index = self._environment.get(names.ENV_SLICE_INDEX, "")
        return {
            "slice_index": int(index) if index.isdigit() else None,
            "slice_name": self._environment.get("TPU_NAME"),
            "worker_id": self._environment.get("TPU_WORKER_ID"),
            "port": free_port(ports.MASTER),
            "python": platform.python_version(),
            "cwd": os.getcwd(),
        }

    def start(self, request: dict[str, Any]) -> str | None:
        """Start the ranks: argv, cwd or None, ranks as {number: planned environment}, grace_s.

        Returns a sentence if the entrypoint cannot be started here, and then starts nothing.
        """
        argv, cwd = list(request["argv"]), request["cwd"] or os.getcwd()
        ranks = []
        for number, planned in request["ranks"].items():
            paths = {
                ENV_ERROR_FILE: rank_file(self._run_dir, number, "error.json"),
                names.ENV_REPORT_FILE: rank_file(self._run_dir, number, "report.json"),
            }
            environment = child_environment(self._environment, planned | paths)
            log = rank_file(self._run_dir, number, "log")
            ranks.append({"rank": number, "argv": argv, "cwd": cwd, "env": environment, "log": log})
            self._bases[number] = [0, 0]
            for path in (*paths.values(), log, log + ".1"):  # of an earlier run in this folder
                Path(path).unlink(missing_ok=True)
        if fault := entrypoint_fault(argv, cwd, ranks[0]["env"]):
            return fault
        Path(self._run_dir).mkdir(parents=True, exist_ok=True)
        self._start_launcher(
            {
                "ranks": ranks,
                "grace_s": request["grace_s"],
                "run_dir": self._run_dir,
                "pod_stdout": self._environment.get(names.ENV_POD_STDOUT),
                "log_limit": int(request.get("log_limit") or LOG_LIMIT),
            }
        )
        return None

    def _start_launcher(self, request: dict[str, Any]) -> None:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "torchtpu_operator.runtime.launcher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._launcher = launcher
        threading.Thread(target=self._listen, args=(launcher,), daemon=True).start()
        launcher.wait()  # it detached itself
        assert launcher.stdin is not None  # noqa: S101
        launcher.stdin.write(json.dumps(request).encode() + b"\n")
        launcher.stdin.flush()

    def _listen(self, launcher: subprocess.Popen[bytes]) -> None:
        assert launcher.stdout is not None  # noqa: S101
        done = False
        for line in launcher.stdout:
            event = json.loads(line)
            rank = event.get("rank")
            if event["event"] == "rotated":
                self._bases[rank] = [self._bases[rank][1], event["base"]]
                continue
            if event["event"] == "started":
                self._pids[rank] = event["pid"]
            elif event["event"] == "exited":
                self._pids.pop(rank, None)
                event["error_type"] = self._error_type(rank) if event["code"] else None
            done = event["event"] == "done"
            self._events.append(event)
        if not done:  # the launcher was killed: its ranks died with it, their children may not have
            for pid in self._pids.values():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            self._events.append({"event": "lost", "at": time.monotonic()})

    def _error_type(self, rank: int) -> str | None:
        """Class of the exception in torch's error file: an identifier, no text of the user's."""
        try:
            with open(rank_file(self._run_dir, rank, "error.json"), "rb") as file:
                message = json.loads(file.read(ERROR_BYTES))["message"]
            text = message["message"] if isinstance(message, dict) else message
            name = str(text).split(":", 1)[0]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return name if name.isidentifier() and name.isascii() and len(name) <= 64 else None

    def poll(self, seen: int, offsets: dict[int, int], limit: int, timeout_s: float) -> dict[str, Any]:
        """Events after the first `seen`, with `age_s` for `at`; output from `offsets` of ranks; reports that changed.

        Answers at the first event or output, else after `timeout_s`. `limit` bounds the bytes for each rank; an offset
        below 0 means the last `limit` bytes.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            output = {rank: self._output(rank, offset, limit) for rank, offset in offsets.items()}
            if len(self._events) > seen or any(data for _, data in output.values()) or time.monotonic() >= deadline:
                break
            time.sleep(POLL_STEP_S)
        now = time.monotonic()
        events = [event | {"age_s": now - event["at"]} for event in self._events[seen:]]
        return {"events": events, "output": output, "reports": self._new_reports()}

    def _output(self, rank: int, offset: int, limit: int) -> tuple[int, bytes]:
        previous, base = self._bases[rank]
        if offset < 0:  # the end only, `limit` bytes of it
            with contextlib.suppress(OSError):
                offset = base + os.path.getsize(rank_file(self._run_dir, rank, "log")) - limit
        return read_log(Path(rank_file(self._run_dir, rank, "log")), base, previous, max(offset, 0), limit)

    def _new_reports(self) -> dict[int, str]:
        changed = {}
        for rank in self._bases:
            try:
                with open(rank_file(self._run_dir, rank, "report.json"), encoding="utf-8") as file:
                    text = file.read(REPORT_BYTES)
            except (OSError, ValueError):
                continue
            if text != self._reports.get(rank):
                self._reports[rank] = changed[rank] = text
        return changed

    def stop(self) -> None:
        """Ask the launcher to stop the ranks; their end arrives as events."""
        if self._launcher and self._launcher.stdin:
            with contextlib.suppress(OSError):
                self._launcher.stdin.write(b"stop\n")
                self._launcher.stdin.flush()
