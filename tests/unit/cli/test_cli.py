"""The command line from outside: exit codes, and what people read. One process where imports or streams matter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from torchtpu_operator.cli.main import app

GOOD = """
apiVersion: torchtpu.dev/v1alpha1
kind: TorchTPUJob
metadata: {name: good}
spec:
  tpu: {accelerator: v6e, topology: 4x4}
  runtime: {image: "i:1", entrypoint: [python, t.py]}
"""
BAD = GOOD.replace("4x4", "3x3").replace("name: good", "name: bad").replace("image:", "imagee: x, image:")
OTHER = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n"
EXPLAIN_KEYS = {
    "accelerator", "topology", "slices", "chips", "devices", "hosts", "chipsPerHost", "machineType", "nodeSelector",
    "rayPodType", "rayAcceleratorType", "ranks",
}  # fmt: skip


def ttj(*arguments, text=None):
    return CliRunner().invoke(app, list(arguments), input=text)


def process(*arguments, **options):
    command = [sys.executable, "-m", "torchtpu_operator.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)


@pytest.fixture
def write(tmp_path):
    def write(text, name="job.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_help_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['ttj', '--help']\n"
        "from torchtpu_operator.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'ray', 'torch', 'kopf', 'kubernetes', 'pydantic', 'rich', 'yaml'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "validate" in result.stdout


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["run"], ["explain"], ["validate", "--wrong"], ["render", "-o", "x"]]
)
def test_usage_errors(arguments):
    assert ttj(*arguments).exit_code == 2


def test_validate_says_what_is_wrong_and_where(write):
    path = write(f"{GOOD}---\n{OTHER}---\n{BAD}")
    result = ttj("validate", "-f", path)
    assert result.exit_code == 2
    assert f"{path}:document 1: ok (good)" in result.stdout
    assert f"{path}:document 3: error: spec.tpu.topology: " in result.stdout
    assert f"{path}:document 3: error: spec.runtime.imagee: " in result.stdout
    assert f"{path}:document 2: skipped, it is a ConfigMap" in result.stderr
    assert ttj("validate", "-f", write(GOOD)).exit_code == 0


def test_validate_for_machines(write):
    result = ttj("validate", "-f", write(f"{GOOD}---\n{BAD}"), "-o", "json")
    assert result.exit_code == 2
    good, bad = json.loads(result.stdout)
    assert (good["name"], good["ok"], good["faults"]) == ("good", True, [])
    assert {fault["path"] for fault in bad["faults"]} >= {"spec.tpu.topology"}
    assert {fault["severity"] for fault in bad["faults"]} == {"error"}


@pytest.mark.parametrize("command", [["validate"], ["render"], ["run"], ["run", "--dry-run"]])
@pytest.mark.parametrize("content", ["", "---\n", OTHER, "a: [", "\x00", "- 1\n", "a: 1\na: 2\n", None])
def test_bad_input_is_exit_2_and_a_sentence(command, content, write, tmp_path):
    path = write(content) if content is not None else str(tmp_path / "missing.yaml")
    result = ttj(*command, "-f", path)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.output.strip()


@pytest.mark.parametrize("command", ["validate", "render", "run"])
def test_a_folder_is_no_file(command, tmp_path):
    result = process(command, "-f", str(tmp_path))
    assert (result.returncode, result.stderr.strip()) == (2, f"error: {tmp_path}: Is a directory")


def test_standard_input_open_and_closed():
    assert ttj("validate", "-f", "-", text=GOOD).exit_code == 0
    code = "import os, sys; os.close(0); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    command = [sys.executable, "-c", code, "-m", "torchtpu_operator.cli", "validate", "-f", "-"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    assert "closed" in result.stderr


def test_a_broken_pipe_is_quiet(write):
    read, end = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "torchtpu_operator.cli", "render", "-f", write("---".join([GOOD] * 30))]
    result = subprocess.run(command, stdout=end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(end)
    assert result.stderr == ""


def test_names_with_control_characters_do_not_reach_the_terminal(write):
    result = ttj("validate", "-f", write(OTHER.replace("ConfigMap", '"\\e[31mred"') + "---\n" + GOOD))
    assert "\x1b" not in result.output


def test_render(write):
    path = write(f"{GOOD}---\n{GOOD.replace('good', 'better')}")
    as_yaml = list(yaml.safe_load_all(ttj("render", "-f", path, "--attempt", "2").stdout))
    as_json = json.loads(ttj("render", "-f", path, "--attempt", "2", "-o", "json").stdout)
    assert as_yaml == as_json
    assert [item["metadata"]["name"] for item in as_json] == ["good-2", "better-2"]
    text = ttj("render", "-f", path, "--runtime-image", "mine:2").stdout
    assert "image: mine:2" in text
    assert "&id" not in text


def test_render_writes_nothing_where_one_job_is_wrong(write):
    result = ttj("render", "-f", write(f"{GOOD}---\n{BAD}"))
    assert (result.exit_code, result.stdout) == (2, "")


def test_explain():
    result = ttj("explain", "v6e", "4x4", "--slices", "2", "-o", "json")
    facts = json.loads(result.stdout)
    assert set(facts) >= EXPLAIN_KEYS
    assert [facts[key] for key in ("chips", "devices", "hosts", "ranks", "chipsPerHost")] == [32, 32, 8, 32, 4]
    assert facts["machineType"] == "ct6e-standard-4t"
    assert "ct6e-standard-4t" in ttj("explain", "v6e", "4x4").stdout


@pytest.mark.parametrize(
    ("words", "slice_"),
    [
        (["v6e-16"], ("v6e", "4x4")),
        (["trillium", "2x4"], ("v6e", "2x4")),
        (["v5litepod-8"], ("v5e", "2x4")),
        (["v5p-16"], ("v5p", "2x2x2")),
        (["v5p-1024", "8x8x8"], ("v5p", "8x8x8")),
        (["tpu7x-16"], ("v7x", "2x2x2")),
        (["ironwood-8"], ("v7x", "2x2x1")),
        (["tpu-v6e-slice", "4x4"], ("v6e", "4x4")),
        (["V6E-256"], ("v6e", "16x16")),
    ],
)
def test_names_that_people_use(words, slice_):
    facts = json.loads(ttj("explain", *words, "-o", "json").stdout)
    assert (facts["accelerator"], facts["topology"]) == slice_


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["v6e", "3x3"], "4x4"),
        (["v6e"], "needs a topology"),
        (["v6e-12"], "none has 12 chips"),
        (["v6e-16", "2x4"], "it is 4x4"),
        (["v5p-1024"], "8x8x8"),
        (["v3-8"], "v3"),
        (["h100", "4x4"], "h100"),
        (["v6e", "2x2", "--slices", "2"], "slices"),
        (["v6e", "4x4", "--chips-per-host", "8"], "8"),
        (["v6e-99999999999999999999"], "v6e"),
        (["", "4x4"], ""),
    ],
)
def test_a_slice_that_does_not_exist(words, hint):
    result = ttj("explain", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert hint in result.stderr


def test_dry_run_shows_every_environment(write):
    path = write(GOOD)
    text = ttj("run", "--dry-run", "-f", path).stdout
    assert "slice-0-host-3" in text
    assert "TORCH_TPU_TOPOLOGY=4,4,1" in text
    assert "unverified on hardware" in text
    ranks = json.loads(ttj("run", "--dry-run", "-f", path, "-o", "json").stdout)["ranks"]
    assert [entry["environment"]["RANK"] for entry in ranks] == [str(rank) for rank in range(16)]


def test_dry_run_of_a_large_job_stays_short(write):
    text = ttj("run", "--dry-run", "-f", write(GOOD.replace("4x4", "16x16"))).stdout
    assert len(text.splitlines()) < 150
    assert "more, all with -o json" in text


def test_one_of_several_jobs_is_chosen(write):
    path = write(f"{GOOD}---\n{GOOD.replace('good', 'better')}")
    result = ttj("run", "--dry-run", "-f", path)
    assert result.exit_code == 2
    assert "--name: good, better" in result.stderr
    assert "better: 16 ranks" in ttj("run", "--dry-run", "-f", path, "--name", "better").stdout
    assert ttj("run", "--dry-run", "-f", path, "--name", "worst").exit_code == 2


def test_several_xla_ranks_on_cpu_are_refused(write):
    xla = GOOD.replace("entrypoint", "framework: TorchXLA, entrypoint")
    result = ttj("run", "-f", write(xla))
    assert result.exit_code == 2
    assert "wrong numbers" in result.stderr
    assert ttj("run", "--dry-run", "-f", write(xla)).exit_code == 0


def test_what_this_machine_cannot_is_exit_3(write, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    result = ttj("run", "-f", write(GOOD.replace("4x4", "16x16")))
    assert result.exit_code == 3
    assert "--dry-run" in result.stderr
    assert not list(Path(tmp_path / "state").rglob("*.log"))
    monkeypatch.setattr(sys, "platform", "darwin")
    result = ttj("run", "-f", write(GOOD))
    assert result.exit_code == 3
    assert "docker run" in result.stderr


def test_output_must_be_empty(write, tmp_path):
    path = write(GOOD)
    result = ttj("run", "-f", path, "--output", str(tmp_path))
    assert (result.exit_code, "not an empty folder" in result.stderr) == (2, True)


def test_yaml_says_what_json_says(tmp_path: Path) -> None:
    import yaml

    path = str(tmp_path / "job.yaml")
    Path(path).write_text(GOOD)
    for command in (["explain", "v6e", "4x4"], ["validate", "-f", path], ["run", "--dry-run", "-f", path]):
        as_yaml, as_json = (ttj(*command, "-o", form).stdout for form in ("yaml", "json"))
        assert yaml.safe_load(as_yaml) == json.loads(as_json)
