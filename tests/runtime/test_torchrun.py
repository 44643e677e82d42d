"""A rank sees what torchrun would show it, and a torchrun script runs unchanged."""

import json
import os
import subprocess
import sys

from tests.runtime.raycluster import base_environment, job

ONE_HOST = {"accelerator": "v7x", "topology": "1x1x1", "chips_per_host": 1}
# The values differ by nature: where, which run, which error file.
OWN_VALUES = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
OURS = {"TORCH_DEVICE_BACKEND_AUTOLOAD", "PYTHONUNBUFFERED"}
# torchrun's agent holds the store (True); here rank 0 opens it, as torch does when the variable is False.
STORE = "TORCHELASTIC_USE_AGENT_STORE"

WRITE = "import json, os, sys; json.dump(dict(os.environ), open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'w'))"
TRAIN = """
import os, sys
import torch, torch.distributed as dist
import ttj
dist.init_process_group(ttj.backend())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1).to(ttj.device()))
loss = model(torch.full((2, 4), float(dist.get_rank() + 1), device=ttj.device())).sum()
loss.backward()
total = model.module.weight.grad.sum()
ttj.report(1, {"grad": total}, total=1)
sys.stdout.write(f"grad {float(total)} {ttj.device()} {ttj.backend()}\\n")  # one write: torchrun's ranks share one pipe
dist.destroy_process_group()
"""


def torchrun(*arguments, **environment):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *arguments]
    return subprocess.run(command, env=base_environment() | environment, capture_output=True, text=True, timeout=120)


def test_environment_key_by_key(cluster, tmp_path):
    (tmp_path / "write.py").write_text(WRITE)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    torchrun(str(tmp_path / "write.py"), str(theirs))
    result = cluster.drive(job([sys.executable, str(tmp_path / "write.py"), str(ours)], **ONE_HOST))
    assert result.code == 0, result.output
    inherited = cluster.environment.keys() | {"USER_VARIABLE"}
    for rank in ("0", "1"):
        expected, got = (json.loads((folder / rank).read_text()) for folder in (theirs, ours))
        added = {k: v for k, v in expected.items() if k not in inherited or expected[k] != cluster.environment[k]}
        assert {k for k in got if not k.startswith("TTJ_")} - inherited - OURS == added.keys() - inherited
        for name in added.keys() - OWN_VALUES - {STORE}:
            assert got[name] == expected[name], name
        assert (expected[STORE], got[STORE]) == ("True", "False")
        assert (got["USER_VARIABLE"], got["PATH"]) == ("kept", os.environ["PATH"])
        assert not [k for k in got if k.startswith(("RAY_", "TPU_"))]
        assert got["TTJ_DEVICE"] == "CPU"


def test_the_same_script_trains_under_both(cluster, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    result = cluster.drive(job([sys.executable, str(script)], **ONE_HOST))
    assert result.code == 0, result.output
    assert "[rank 0] grad 12.0 cpu gloo\n" in result.output
    ran = torchrun(str(script))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("grad 12.0 cpu gloo") == 2
    plain = (
        "import ttj, torch; assert ttj.device() == torch.device('cpu'); assert ttj.backend() == 'gloo'; ttj.report(1)"
    )
    subprocess.run([sys.executable, "-c", plain], env=base_environment(), check=True)


def test_error_type_from_torchs_own_error_file(cluster, tmp_path):
    script = tmp_path / "fail.py"
    script.write_text(
        "import os\nfrom torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main():\n    if os.environ['RANK'] == '1': raise KeyError('user text')\n"
        "    import time; time.sleep(100)\n"
        "main()\n"
    )
    result = cluster.drive(job([sys.executable, str(script)], **ONE_HOST))
    assert (result.cause, result.termination.error_type, result.termination.rank) == ("RankFailed", "KeyError", 1)
    assert "user text" not in result.termination.to_json()
