"""Both screens draw a run that is made up, and hold against hostile text."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from torchtpu_operator.cli.live import Live
from torchtpu_operator.cli.plain import Plain, map_lines
from torchtpu_operator.cli.view import View
from torchtpu_operator.contract.job import JobSpec
from torchtpu_operator.contract.progress import HostProgress, Progress
from torchtpu_operator.local.pods import Command, LocalPod, Plan
from torchtpu_operator.tpu.slices import slice_shape

HOSTILE = "[rank 0] \x1b]0;title\x07\x1b[2J [red]not markup[/red] \r\x9b31m"


def plan(accelerator, topology, slices=1, chips=None):
    shape = slice_shape(accelerator, topology, chips)
    spec = JobSpec("j", "d", "u", 1, "TorchTPU", "CPU", accelerator, topology, shape.chips_per_host, slices, ("x",))
    command = Command(("x",), {}, "/")
    pod = LocalPod("head", "head", "127.70.0.1", (), command)
    workers = tuple(
        replace(pod, name=f"slice-{s}-host-{h}", role="worker", address=f"127.70.{s}.{h + 2}", slice_id=s, host=h)
        for s in range(slices)
        for h in range(shape.hosts)
    )
    return Plan(spec, pod, workers, replace(pod, name="submitter"), (("image i", "this Python"),), Path("/t"))


def test_the_map_shows_each_rank_once_where_its_chip_lies():
    lines = map_lines(View(plan("v6e", "4x4")))
    assert "\n".join(lines) == (
        "slice 0: rank by device, as the chips lie\n"
        "      host 0 127.70.0.2   host 1 127.70.0.3\n"
        "        0   1               4   5\n"
        "        2   3               6   7\n"
        "      host 2 127.70.0.4   host 3 127.70.0.5\n"
        "        8   9              12  13\n"
        "       10  11              14  15"
    )


@pytest.mark.parametrize(
    ("shape", "ranks"), [(("v5p", "2x2x4"), 16), (("v7x", "2x2x1"), 8), (("v6e", "2x4", 2, 4), 16)]
)
def test_every_rank_is_on_the_map(shape, ranks):
    view = View(plan(*shape))
    shown = [
        r
        for s in range(view.plan.spec.slices)
        for h in range(view.shape.hosts)
        for row in view.device_grid(s, h)
        for r in row
    ]
    assert sorted(shown) == list(range(ranks))


def drive(screen, job):
    screen.begin(job, ["memory: enough"])
    screen.pod("head", "alive")
    for worker in job.workers:
        screen.pod(worker.name, "starting")
        screen.pod(worker.name, "alive")
    hosts = tuple(HostProgress(w.slice_id, w.host, w.address, (), ()) for w in job.workers)
    hosts = (replace(hosts[0], ranks=(0, 1), states=("running", "failed")), *hosts[1:])
    screen.progress(Progress("Running", "\x1b[31mred", hosts, len(hosts), 5, 10, 2.5, {"loss": 0.25, "\x1b[2Ja": 1.0}))
    screen.log(HOSTILE)
    screen.tick()
    screen.note("stopping")
    screen.close()


def test_the_plain_screen(capsys):
    drive(Plain(), plan("v6e", "2x4", 2, 4))
    text = capsys.readouterr().out
    assert "image i  ->  this Python" in text
    assert "ttj: hosts: 4 of 4 alive" in text
    assert "ttj: step 5/10  2.5 steps/s  loss 0.25" in text
    assert "[red]not markup[/red]" in text
    assert not set(text) & set("\x1b\x07\r\x9b")


@pytest.mark.parametrize("shape", [("v6e", "4x4"), ("v5p", "2x2x4"), ("v6e", "2x4", 2, 4), ("v6e", "8x16")])
def test_the_live_screen(shape):
    out = io.StringIO()
    drive(Live(Console(file=out, force_terminal=True, width=120, color_system=None)), plan(*shape))
    text = out.getvalue()
    assert "step 5/10" in text
    assert "[red]not markup[/red]" in text
    assert "\x1b]0;" not in text
    assert "\x1b[2J" not in text
    assert not set(text) & set("\x07\x9b")
