import pytest

from torchtpu_operator.contract.job import JobSpec
from torchtpu_operator.local import checks
from torchtpu_operator.local.checks import EnvironmentProblem

GIB = 2**30


def spec(topology="4x4"):
    return JobSpec("n", "d", "u", 1, "TorchTPU", "CPU", "v6e", topology, 4, 1, ("x",))


def test_available_memory(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:  4194304 kB\n")
    assert checks.available_bytes(tmp_path / "meminfo", tmp_path) == 4 * GIB
    (tmp_path / "memory.max").write_text(f"{3 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB}\n")
    assert checks.available_bytes(tmp_path / "meminfo", tmp_path) == 2 * GIB
    (tmp_path / "memory.max").write_text("max\n")
    assert checks.available_bytes(tmp_path / "meminfo", tmp_path) == 4 * GIB
    assert checks.available_bytes(tmp_path / "missing", tmp_path) is None


@pytest.fixture
def packages(monkeypatch):
    versions = {"ray": "2.60.0", "torch": "2.13.0"}
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: object() if versions.get(name, "x") else None)
    monkeypatch.setattr(checks.importlib.metadata, "version", versions.get)
    return versions


def test_memory_is_said_warned_of_or_refused(monkeypatch, packages, tmp_path):
    needed = checks.needed_bytes(4, 16)
    for share, remarks in ((1.1, 1), (0.9, 2)):
        monkeypatch.setattr(checks, "available_bytes", lambda share=share: share * needed)
        assert len(checks.check(spec(), tmp_path)) == remarks
    monkeypatch.setattr(checks, "available_bytes", lambda: 0.4 * needed)
    with pytest.raises(EnvironmentProblem, match="not enough memory"):
        checks.check(spec(), tmp_path)


@pytest.mark.parametrize(("ray", "torch"), [("2.59.1", "2.13.0"), (None, "2.13.0"), ("2.60.0", None), ("x", "2.13.0")])
def test_packages(packages, tmp_path, ray, torch):
    packages |= {"ray": ray, "torch": torch}
    with pytest.raises(EnvironmentProblem, match="pip install"):
        checks.check(spec("2x2"), tmp_path)


def test_too_many_ranks(packages, tmp_path):
    with pytest.raises(EnvironmentProblem, match="--dry-run"):
        checks.check(spec("8x16"), tmp_path)
