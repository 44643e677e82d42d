"""`make cluster` and what goes wrong: a sentence each, and no hang."""

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.cluster.test_control_plane import ENVIRONMENT
from tests.testbed.cache import TestbedError, cache, require_disk
from tests.testbed.processes import processes

from torchtpu_operator.runtime.processes import descendants


@pytest.fixture
def testbed(plane, tmp_path):
    """The command, with a cache of its own that shares the programs."""
    for folder in ("bin", "share"):
        (tmp_path / folder).symlink_to(cache() / folder)

    def run(verb):
        return subprocess.run(
            [sys.executable, "-m", "tests.testbed", verb],
            env=ENVIRONMENT | {"TTJ_TESTBED_CACHE": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    yield run
    run("down")


def test_up_twice_status_and_down(testbed, tmp_path):
    up = testbed("up")
    assert up.returncode == 0, up.stderr
    kubeconfig = up.stdout.strip().removeprefix("export KUBECONFIG=")
    assert testbed("status").stdout == f"KUBECONFIG={kubeconfig}\n"
    again = testbed("up")
    assert (again.returncode, again.stderr) == (
        1,
        f"error: a cluster runs already, with KUBECONFIG={kubeconfig}; end it with make cluster-down\n",
    )
    down = testbed("down")
    assert (down.returncode, down.stderr) == (0, "")
    assert not os.path.exists(kubeconfig)
    assert testbed("status").stdout == "no cluster runs\n"
    assert not list((tmp_path / "logs").iterdir())


def test_a_record_of_a_dead_cluster_is_no_cluster(testbed, tmp_path):
    (tmp_path / "cluster.json").write_text(json.dumps({"pid": "1", "started": "0", "kubeconfig": "gone"}))
    assert testbed("status").returncode == 1
    (tmp_path / "cluster.json").write_text("{ of an older version")
    assert testbed("status").returncode == 1


def never_ready(*argv):
    """A bed of one process that never gets ready."""
    with processes("test") as running:
        running.start("etcd", *argv)
        running.wait(lambda: False, "etcd", "etcd", timeout_s=2)


def test_a_component_that_dies_is_named_with_its_last_words():
    with pytest.raises(TestbedError, match=r"etcd ended \(code 3\); (.*)etcd.log ends with:\n  no space") as caught:
        never_ready("/bin/sh", "-c", "echo no space; exit 3")
    log = str(caught.value).split("; ")[1].split(" ends with")[0]
    assert os.path.exists(log)  # kept


def test_one_that_is_not_there_is_named_too():
    with pytest.raises(TestbedError, match=r"etcd ended .*No such file"):
        never_ready("/nothing/etcd")


def test_one_that_hangs_has_a_deadline():
    with pytest.raises(TestbedError, match=r"etcd did not come within 2 s"):
        never_ready("/bin/sleep", "1000")


def test_no_disk_and_no_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("TTJ_TESTBED_CACHE", str(tmp_path))
    with pytest.raises(TestbedError, match=r"GiB free, four nodes needs 1e\+09; make room or set TTJ_TESTBED_CACHE"):
        require_disk(1e9, "four nodes")
    monkeypatch.setenv("TTJ_TESTBED_CACHE", "/proc/nothing")
    with pytest.raises(TestbedError, match="/proc/nothing cannot be made"):
        require_disk(1, "four nodes")


def test_a_bed_whose_api_server_dies_ends(testbed, tmp_path):
    assert testbed("up").returncode == 0
    state = json.loads((tmp_path / "cluster.json").read_text())
    (server,) = children(int(state["pid"]), "kube-apiserver")
    os.kill(server, signal.SIGKILL)
    until_gone = subprocess.run(
        ["tail", f"--pid={state['pid']}", "-f", "/dev/null"], check=False, timeout=60, capture_output=True
    )
    assert until_gone.returncode == 0
    assert "kube-apiserver ended (code -9)" in (tmp_path / "cluster.log").read_text()
    assert testbed("status").stdout == "no cluster runs\n"


def children(root, name):
    return [pid for pid in descendants(root) if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == name]
