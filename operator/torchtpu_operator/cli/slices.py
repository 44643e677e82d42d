"""`ttj explain`: what follows from a TPU generation and a topology."""

import math
from typing import Any

import typer

from torchtpu_operator.cli import exits
from torchtpu_operator.tpu.generations import ALIASES, GENERATIONS
from torchtpu_operator.tpu.ranks import world_size
from torchtpu_operator.tpu.slices import ShapeError, SliceShape, check_slices, slice_shape, topologies


def explain(accelerator: str, topology: str | None, chips_per_host: int | None, slices: int, output: str | None) -> int:
    """Write the facts; 0, or 2 with what is legal instead."""
    try:
        name, known = _named(accelerator)
        shape = slice_shape(name, topology or known, chips_per_host)
        check_slices(shape, slices)
    except ShapeError as error:
        raise exits.invalid(error.message) from None
    facts = describe(shape, slices)
    if output:
        from torchtpu_operator.cli.documents import dump

        typer.echo(dump(facts, output), nl=False)
    else:
        for key, value in facts.items():
            text = ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value
            typer.echo(f"{key:20}{text}")
    for warning in shape.warnings:
        typer.echo(f"warning: {warning}", err=True)
    return exits.OK


def describe(shape: SliceShape, slices: int) -> dict[str, Any]:
    """The facts by name; chips, devices, hosts and ranks are totals over all slices."""
    return {
        "accelerator": shape.generation.name,
        "topology": shape.topology,
        "slices": slices,
        "chips": shape.chips * slices,
        "devices": shape.devices * slices,
        "hosts": shape.hosts * slices,
        "chipsPerHost": shape.chips_per_host,
        "machineType": shape.machine_type.name,
        "nodeSelector": shape.node_selector,
        "rayPodType": shape.ray_pod_type,
        "rayAcceleratorType": shape.ray_accelerator_type,
        "ranks": world_size(shape, slices),
    }


def _named(accelerator: str) -> tuple[str, str]:
    """Generation and, for a name with a size such as `v6e-16`, its topology; '' where none was given."""
    word = accelerator.lower()
    if word in GENERATIONS or word in ALIASES:
        return ALIASES.get(word, word), ""
    prefix, _, size = word.rpartition("-")
    name = ALIASES.get(prefix, prefix)
    if name not in GENERATIONS or not (size.isascii() and size.isdigit()) or len(size) > 6:
        return accelerator, ""
    generation = GENERATIONS[name]
    probe = next(iter(topologies(generation)))
    cores = int(slice_shape(name, probe).accelerator_type.rpartition("-")[2]) // slice_shape(name, probe).chips
    chips = int(size) / cores
    fitting = [t for t in topologies(generation) if math.prod(map(int, t.split("x"))) == chips]
    if len(fitting) != 1:
        found = f"it may be {', '.join(fitting[:8])}: give the topology" if fitting else "no topology has that size"
        raise ShapeError("accelerator", f"{name}-{size}: {found}")
    return name, fitting[0]
