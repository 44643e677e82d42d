"""A user's changes laid over a rendered pod template."""

import copy
from typing import Any

_MERGE_KEYS = {"volumeMounts": "mountPath"}


def overlay(base: Any, change: Any, field: str = "") -> Any:
    """Maps merge, lists merge by name (volumeMounts by mountPath), others replace. Neither argument is changed."""
    if isinstance(base, dict) and isinstance(change, dict):
        merged = {key: overlay(value, change[key], key) if key in change else value for key, value in base.items()}
        return copy.deepcopy(merged | {key: value for key, value in change.items() if key not in base})
    if isinstance(base, list) and isinstance(change, list):
        return _lists(base, change, _MERGE_KEYS.get(field, "name"))
    return copy.deepcopy(change)


def _lists(base: list[Any], change: list[Any], key: str) -> list[Any]:
    if not all(isinstance(item, dict) and key in item for item in base + change):
        return copy.deepcopy(change)
    changes = {item[key]: item for item in change}
    merged = [overlay(item, changes.pop(item[key])) if item[key] in changes else copy.deepcopy(item) for item in base]
    return merged + [copy.deepcopy(item) for item in changes.values()]
