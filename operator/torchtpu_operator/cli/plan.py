"""`ttj run --dry-run`: which rank runs where, and with which environment."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torchtpu_operator.cli.forms import Form, written
from torchtpu_operator.local.pods import job_record
from torchtpu_operator.runtime.plan import RankPlan, rank_table, shape_of

SHOWN_RANKS = 64
SHOWN_VALUES = 4
SHOWN_WIDTH = 100


def show(objects: Sequence[Mapping[str, Any]], form: Form) -> str:
    """Raises ValueError for an environment that is too large for a process."""
    spec = job_record(objects[0])
    shape = shape_of(spec)
    hosts = [[f"slice-{s}-host-{h}" for h in range(shape.hosts)] for s in range(spec.slices)]
    table = rank_table(spec, hosts)
    if form != "text":
        return written({"verified": spec.device == "CPU", "ranks": [_record(plan) for plan in table]}, form)
    lines = [
        f"{spec.name}: {len(table)} ranks on {spec.slices} x {spec.accelerator} {spec.topology}, device {spec.device}"
    ]
    lines += [f"entrypoint: {json.dumps(list(spec.entrypoint))}", "addresses are placeholders", ""]
    lines += [*_ranks(table), "", *_environments(table)]
    if spec.device == "TPU":
        lines += ["", "The TPU variables follow the sources of Ray, torch_tpu and GKE; unverified on hardware."]
    return "\n".join(lines) + "\n"


def _record(plan: RankPlan) -> dict[str, Any]:
    place = plan.position
    return {
        "rank": place.rank,
        "slice": place.slice_id,
        "host": place.host,
        "device": place.device,
        "address": plan.address,
        "environment": dict(sorted(plan.environment.items())),
    }


def _ranks(table: Sequence[RankPlan]) -> list[str]:
    width = max(len(plan.address) for plan in table)
    lines = [f"{'rank':>5} {'slice':>6} {'host':>5} {'device':>7}  {'address':<{width}}"]
    shown = table if len(table) <= SHOWN_RANKS else [*table[: SHOWN_RANKS - 8], *table[-4:]]
    for plan in shown:
        place = plan.position
        if plan is table[-4] and len(shown) < len(table):
            lines.append(f"  ... {len(table) - len(shown)} more, all with -o json")
        lines.append(f"{place.rank:>5} {place.slice_id:>6} {place.host:>5} {place.device:>7}  {plan.address}")
    return lines


def _environments(table: Sequence[RankPlan]) -> list[str]:
    first = table[0].environment
    lines = ["environment of rank 0:"] + [f"  {name}={_cut(value)}" for name, value in sorted(first.items())]
    names = sorted({name for plan in table for name in plan.environment})
    varying = {}
    for name in names:
        values = [plan.environment.get(name, "(unset)") for plan in table]
        if any(value != values[0] for value in values):
            varying[name] = values
    if varying:
        lines += ["", "what differs, by rank:"]
    for name, values in varying.items():
        shown = values if len(values) <= SHOWN_VALUES + 1 else [*values[:SHOWN_VALUES], "...", values[-1]]
        lines.append(f"  {name}: {_cut(', '.join(shown))}")
    return lines


def _cut(text: str) -> str:
    half = SHOWN_WIDTH // 2
    return text if len(text) <= SHOWN_WIDTH + 20 else f"{text[:half]}...{text[-half:]} ({len(text)} characters)"
