"""Smaller parts: entrypoint check, stream, verdict and follower of the submitter, versions, ttj.report."""

import json
import os
import subprocess
import sys

import pytest

from torchtpu_operator.contract.exits import Cause
from torchtpu_operator.contract.termination import Termination
from torchtpu_operator.runtime import stream as streams
from torchtpu_operator.runtime.agent import entrypoint_fault
from torchtpu_operator.runtime.driver import version_fault
from torchtpu_operator.runtime.stream import CHUNK, Stream
from torchtpu_operator.runtime.submit import Follower, verdict


@pytest.mark.parametrize(
    ("argv", "fault"),
    [
        (["sh", "-c", "true"], None),
        (["./tool"], None),
        (["python3", "train.py"], None),
        (["python3", "-u", "-B", "train.py"], None),
        (["python3", "-m", "no.such"], None),
        (["python3", "-c", "no such"], None),
        (["python3", "-X", "dev", "no-such.py"], None),  # options that take a value are not parsed
        (["python3"], None),
        (["no-such-program"], "'no-such-program'"),
        (["./no-such"], "'./no-such'"),
        (["./plain"], "'./plain'"),
        (["python3", "no-such.py"], "'no-such.py'"),
        (["python3", "-u", "no-such.py"], "'no-such.py'"),
    ],
)
def test_entrypoint_fault(tmp_path, argv, fault):
    (tmp_path / "train.py").touch()
    (tmp_path / "plain").touch()
    (tmp_path / "tool").touch(mode=0o755)
    found = entrypoint_fault(argv, str(tmp_path), dict(os.environ))
    if fault is None:
        assert found is None
    else:
        assert fault in found
        assert str(tmp_path) in found


def test_versions():
    assert version_fault((3, 11), "2.60.0") is None
    assert version_fault((3, 13), "2.61.0rc1") is None
    assert "Python 3.14" in version_fault((3, 14), "2.60.0")
    assert "Python 3.10" in version_fault((3, 10), "2.60.0")
    assert "Ray 2.59.2" in version_fault((3, 12), "2.59.2")


def test_stream_shows_lines_and_says_what_it_leaves_out(capsys):
    stream = Stream(3)
    assert stream.wanted() == {3: 0}
    stream.take(0, b"one\ntw")
    stream.take(6, b"o\n")
    stream.take(108, b"far\nend")
    stream.finish()
    assert capsys.readouterr().out == (
        "[rank 3] one\n[rank 3] two\n[rank 3] ... 100 bytes not shown, they are in the rank's log\n"
        "[rank 3] far\n[rank 3] end\n"
    )


def test_stream_is_bounded(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(streams.time, "monotonic", lambda: now[0])
    stream = Stream(0, rate=1000.0, burst=2 * CHUNK)
    stream.take(0, b"x" * (CHUNK + 1))
    assert stream.wanted() == {}
    now[0] = 66.0
    assert stream.wanted() == {0: -1}
    stream.take(CHUNK - 4, b"xxxxxy\n")  # the end asked for overlaps what was shown
    assert capsys.readouterr().out.endswith("y\n")


def test_verdict_trusts_a_result_only_if_it_fits_the_exit_code():
    failed = Termination(Cause.RANK_FAILED, "m", rank=1).to_json()
    assert verdict("FAILED", 81, failed).rank == 1
    assert verdict("FAILED", 88, failed).cause == "Internal"
    assert verdict("SUCCEEDED", 0, failed).cause == "Succeeded"
    assert verdict("FAILED", 82, None).cause == "StartupDeadline"
    assert verdict("FAILED", 1, "not json").cause == "Internal"
    assert verdict("FAILED", None, None).cause == "Internal"
    assert verdict("STOPPED", None, Termination(Cause.STOPPED, "asked").to_json()).message == "asked"
    assert verdict("STOPPED", None, None).cause == "Stopped"


class Broken:
    """A client whose log streams break; each begins at the log's start."""

    def __init__(self, streams):
        self.streams = list(streams)
        self.ended = None

    async def tail_job_logs(self, _):
        for piece in self.streams.pop(0):
            if piece is None:
                raise RuntimeError("connection closed")
            yield piece
        if not self.streams:
            self.ended()


def test_follower_prints_each_line_once_over_broken_streams(capsys, monkeypatch):
    monkeypatch.setattr("torchtpu_operator.runtime.submit.POLL_S", 0.01)
    result = 'TTJ-RESULT k {"a": 1}\n'
    client = Broken(
        [["one\ntw", None], [None], ["one\n", "two\nth", None], ["one\ntwo\nthree\n", "TTJ-RESULT k\n", result]]
    )
    follower = Follower(client, "job", "k")
    client.ended = follower.job_ended.set
    follower.run()
    assert capsys.readouterr().out == "one\ntwo\nthree\n"
    assert follower.result == '{"a": 1}'


def report_script(body, tmp_path):
    environment = os.environ | {"TTJ_REPORT_FILE": str(tmp_path / "r.json"), "PYTHONPATH": "operator"}
    return subprocess.run(
        [sys.executable, "-c", "import ttj\n" + body], env=environment, capture_output=True, text=True
    )


def test_report_writes_the_first_and_the_last(tmp_path):
    tensor = "class T:\n  def __float__(self): return 2.5\n"
    script = tensor + "for i in range(1000): ttj.report(i, {'loss': T(), 'no': 'x'}, total=999)"
    assert report_script(script, tmp_path).returncode == 0
    record = json.loads((tmp_path / "r.json").read_text())
    assert (record["step"], record["total"], record["metrics"]) == (999, 999, {"loss": 2.5})


def test_report_raises_for_a_wrong_step_only(tmp_path):
    assert "step must be an int, not float" in report_script("ttj.report(1.5)", tmp_path).stderr
    assert report_script("ttj.report(1)", tmp_path / "no-such-folder").returncode == 0
    ran = subprocess.run(
        [sys.executable, "-c", "import ttj; ttj.report(1)"], env={"PYTHONPATH": "operator"}, check=False
    )
    assert ran.returncode == 0


def test_backend_by_the_jobs_word(monkeypatch):
    import ttj

    monkeypatch.setenv("TTJ_DEVICE", "CPU")
    assert ttj.backend() == "gloo"
    monkeypatch.setenv("TTJ_DEVICE", "TPU")
    assert ttj.backend() == "tpu_dist"
