"""`ttj explain`: what a slice is."""

import re
import sys
from typing import Any

from torchtpu_operator.cli.forms import Form, written
from torchtpu_operator.cli.sources import printable, tell
from torchtpu_operator.tpu.generations import ALIASES, GENERATIONS, Generation
from torchtpu_operator.tpu.ranks import world_size
from torchtpu_operator.tpu.slices import ShapeError, SliceShape, check_slices, slice_shape, topologies

_SHOWN = 24


def explain(accelerator: str, topology: str | None, chips_per_host: int | None, slices: int, form: Form) -> int:
    """Exit code: 0, or 2 if there is no such slice; the reason goes to standard error."""
    try:
        name, topology = resolve(accelerator, topology)
        shape = slice_shape(name, topology, chips_per_host)
        check_slices(shape, slices)
    except ShapeError as error:
        tell(f"error: {printable(error.message)}")
        return 2
    facts = describe(shape, slices)
    sys.stdout.write(_text(facts) if form == "text" else written(facts, form))
    return 0


def resolve(accelerator: str, topology: str | None) -> tuple[str, str]:
    """Generation and topology from what people write: `trillium 4x4`, `v6e-16`. Raises ShapeError."""
    word = accelerator.strip().lower()
    name = ALIASES.get(word, word)
    if name in GENERATIONS or "-" not in name:
        if topology is None and name in GENERATIONS:
            raise ShapeError("topology", f"{name} needs a topology: {_list(list(topologies(GENERATIONS[name])))}")
        return name, topology or ""
    prefix, _, number = name.rpartition("-")
    generation = _by_prefix(prefix)
    if generation is None or not re.fullmatch(r"[0-9]{1,6}", number):
        return name, topology or ""  # refused by name, with the reason
    fitting = [t for t in topologies(generation) if _type_number(generation, t) == int(number)]
    if topology is not None:
        if topology not in fitting:
            raise ShapeError("topology", f"{accelerator} is not {topology[:40]}; it is {_list(fitting) or 'no slice'}")
        return generation.name, topology
    if len(fitting) != 1:
        unit = "TensorCores" if generation.cores_per_chip > 1 else "chips"
        what = f"can be {_list(fitting)}: add one" if fitting else f"is no slice: none has {number} {unit}"
        raise ShapeError("topology", f"{printable(accelerator)} {what}")
    return generation.name, fitting[0]


def _by_prefix(prefix: str) -> Generation | None:
    word = ALIASES.get(prefix, prefix)
    return next((g for g in GENERATIONS.values() if word in (g.name, g.type_prefix, g.ray_version)), None)


def _type_number(generation: Generation, topology: str) -> int:
    return slice_shape(generation.name, topology).chips * generation.cores_per_chip


def _list(items: list[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


def describe(shape: SliceShape, slices: int) -> dict[str, Any]:
    """Facts by their JSON names; chips, devices, hosts and ranks are over all slices."""
    return {
        "accelerator": shape.generation.name,
        "topology": shape.topology,
        "slices": slices,
        "chips": shape.chips * slices,
        "devices": shape.devices * slices,
        "hosts": shape.hosts * slices,
        "chipsPerHost": shape.chips_per_host,
        "machineType": shape.machine_type.name,
        "acceleratorType": shape.accelerator_type,
        "nodeSelector": shape.node_selector,
        "rayPodType": shape.ray_pod_type,
        "rayAcceleratorType": shape.ray_accelerator_type,
        "ranks": world_size(shape, slices),
        "warnings": list(shape.warnings),
    }


_LABELS = {
    "chips": "chips",
    "devices": "devices",
    "hosts": "hosts",
    "chipsPerHost": "chips per host",
    "machineType": "machine type",
    "acceleratorType": "accelerator type",
    "rayPodType": "Ray pod type",
    "rayAcceleratorType": "Ray accelerator type",
    "ranks": "ranks",
}


def _text(facts: dict[str, Any]) -> str:
    many = f", {facts['slices']} slices" if facts["slices"] > 1 else ""
    lines = [f"{facts['accelerator']} {facts['topology']}{many}"]
    lines += [f"  {label:<22}{facts[key]}" for key, label in _LABELS.items()]
    selector = [f"{key}: {value}" for key, value in facts["nodeSelector"].items()]
    lines += [f"  {'node selector' if i == 0 else '':<22}{entry}" for i, entry in enumerate(selector)]
    lines += [f"  warning: {warning}" for warning in facts["warnings"]]
    return "\n".join(lines) + "\n"
