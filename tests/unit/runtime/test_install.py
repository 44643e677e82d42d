import json
import os
import subprocess
import sys

import pytest

from torchtpu_operator.runtime.install import InstallError, install


def tree(folder):
    return {
        str(path.relative_to(folder)): (oct(path.stat().st_mode & 0o777), path.read_bytes() if path.is_file() else None)
        for path in folder.rglob("*")
    }


def test_installs_twice_alike_and_runs_from_there(tmp_path):
    umask = os.umask(0o077)
    try:
        files = {"TTJ_FILES": json.dumps({"train.py": "print(1)\n", "conf/a.yaml": "ä"})}
        install(tmp_path / "t", files)
        first = tree(tmp_path / "t")
        install(tmp_path / "t", files)
    finally:
        os.umask(umask)
    assert tree(tmp_path / "t") == first
    assert first["files/conf/a.yaml"] == ("0o644", "ä".encode())
    assert first["run"][0] == "0o777"
    assert {mode for path, (mode, _) in first.items() if path != "run"} == {"0o755", "0o644"}
    assert "torchtpu_operator/api" not in first
    script = "import ttj, torchtpu_operator.runtime.launcher as m; print(m.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(tmp_path / "t")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.startswith(str(tmp_path / "t"))


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", ".", "link/x"])
def test_files_stay_inside(tmp_path, name):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "link").symlink_to("/tmp")
    with pytest.raises(InstallError, match="outside"):
        install(tmp_path, {"TTJ_FILES": json.dumps({name: "x"})})


def test_bad_files_are_an_error(tmp_path):
    with pytest.raises(InstallError, match="not JSON"):
        install(tmp_path, {"TTJ_FILES": "{"})
