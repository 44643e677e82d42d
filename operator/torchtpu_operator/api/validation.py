"""A parsed document -> a job, or everything that is wrong with it at once, in words."""

import copy
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from torchtpu_operator.api import rules
from torchtpu_operator.api.faults import Fault, shown
from torchtpu_operator.api.model import TorchTPUJob
from torchtpu_operator.contract.names import API_VERSION, GROUP, KIND
from torchtpu_operator.tpu.slices import ShapeError, slice_shape

_TYPES = {
    "string_type": "text",
    "int_type": "an integer",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
    "model_attributes_type": "a map",
}


def is_torchtpu(value: Any) -> bool:
    """Whether a document is meant for this operator, rightly written or not."""
    if not isinstance(value, dict):
        return True
    return str(value.get("apiVersion", "")).split("/")[0] == GROUP or value.get("kind") == KIND or "kind" not in value


def check(value: Any) -> tuple[TorchTPUJob | None, list[Fault]]:
    """The job, or None where any fault is an error; all faults, warnings among them."""
    head = list(_head(value))
    if head:
        return None, head
    given = {key: part for key, part in value.items() if key != "status"}
    try:
        job = TorchTPUJob.model_validate(given)
    except ValidationError as error:
        faults = [fault for detail in error.errors(include_url=False) for fault in _plain(detail)]
        return None, _unique([*faults, *_further(given, error)])
    found = rules.apply(job)
    return (None if any(fault.severity == "error" for fault in found) else job), found


def _head(value: Any) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield Fault("", f"a {KIND} is a map with apiVersion, kind, metadata and spec, got {shown(value)}")
        return
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if value.get(key) != wanted:
            have = f"got {shown(value[key])}" if key in value else "it is missing"
            yield Fault(key, f"must be {wanted}; {have}")


def _plain(detail: Mapping[str, Any]) -> Iterator[Fault]:
    path = _path(detail["loc"])
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "missing":
        yield Fault(path, "is required")
    elif kind == "extra_forbidden":
        yield Fault(path, _unknown(detail["loc"]))
    elif kind == "literal_error":
        yield Fault(path, _not_allowed(detail["loc"], detail["input"], str(context["expected"])))
    elif kind in ("greater_than_equal", "less_than_equal"):
        yield Fault(path, f"must be {_bounds(detail['loc'])}, got {shown(detail['input'])}")
    elif kind in _TYPES:
        yield Fault(path, f"must be {_TYPES[kind]}, got {shown(detail['input'])}")
    else:
        message = detail["msg"].replace("Input should", "must").replace("String should", "must")
        yield Fault(path, f"{message}, got {shown(detail['input'])}")


def _path(location: tuple[int | str, ...]) -> str:
    """`spec.runtime.env[2].name`; pydantic's own words for the branches of a union are left out."""
    parts = _data_path(location)
    if len(parts) > 1 and parts[-1] in ("int", "str"):
        parts = parts[:-1]
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{_clean(part)}" for part in parts)
    return text.lstrip(".")


def _clean(part: str) -> str:
    return part if part.isascii() and part.isprintable() and len(part) <= 60 else shown(part)


def _model_at(location: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The model whose field is at a location."""
    model: type[BaseModel] | None = TorchTPUJob
    for part in location:
        if isinstance(part, int):
            continue
        fields = {(f.alias or name): f for name, f in model.model_fields.items()} if model else {}
        if part not in fields:
            return None
        model = _inner(fields[part].annotation)
    return model


def _inner(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for arg in getattr(annotation, "__args__", ()) if (m := _inner(arg))), None)


def _bounds(location: tuple[int | str, ...]) -> str:
    """`1 to 256`; every bounded field has both ends."""
    model = _model_at(location[:-1])
    fields = {field.alias: field for field in model.model_fields.values()} if model else {}
    marks = fields[str(location[-1])].metadata
    low, high = (next(getattr(mark, end) for mark in marks if hasattr(mark, end)) for end in ("ge", "le"))
    return f"{low} to {high}"


def _unknown(location: tuple[int | str, ...]) -> str:
    model = _model_at(location[:-1])
    allowed = [field.alias or name for name, field in model.model_fields.items()] if model else []
    word = str(location[-1])
    near = difflib.get_close_matches(word[:60], allowed, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"no such field; {hint}allowed: {', '.join(allowed)}"


def _not_allowed(location: tuple[int | str, ...], value: Any, expected: str) -> str:
    allowed = expected.replace("'", "").replace(" or ", ", ")
    if location[-1] == "accelerator" and isinstance(value, str):
        try:
            slice_shape(value, "1x1")
        except ShapeError as error:
            return error.message
    near = difflib.get_close_matches(str(value)[:60], allowed.split(", "), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"must be one of {allowed}, got {shown(value)}{hint}"


def _further(value: dict[str, Any], error: ValidationError) -> list[Fault]:
    """What the rules find in the rest, once the parts of the wrong form are taken out."""
    rest = copy.deepcopy(value)
    for detail in error.errors(include_url=False):
        *parents, last = _data_path(detail["loc"])
        holder: Any = rest
        for part in parents:
            holder = holder.get(part) if isinstance(holder, dict) else holder[int(part)]
        if isinstance(holder, dict):
            holder.pop(last, None)
    try:
        return rules.apply(TorchTPUJob.model_validate(rest))
    except ValidationError:
        return []


def _data_path(location: tuple[int | str, ...]) -> list[int | str]:
    return [p for p in location if isinstance(p, int) or not p.startswith(("constrained-", "function-", "[key]"))]


def _unique(faults: list[Fault]) -> list[Fault]:
    """A union reports a fault once per branch; a field is named once."""
    seen: dict[str, Fault] = {}
    for fault in faults:
        seen.setdefault(fault.path, fault)
    return list(seen.values())
