"""Values as JSON or YAML text."""

import json
from collections.abc import Sequence
from typing import Any, Literal

Form = Literal["text", "yaml", "json"]


def written(value: Any, form: Form) -> str:
    """One value, in JSON or YAML."""
    return json.dumps(value, indent=2) + "\n" if form == "json" else _yaml([value], explicit_start=False)


def documents(values: Sequence[Any]) -> str:
    """YAML documents, keys in the order of the values."""
    return _yaml(values, explicit_start=True)


def _yaml(values: Sequence[Any], explicit_start: bool) -> str:
    import yaml  # here: explain's text form needs none

    class Plain(yaml.CSafeDumper):
        """No anchors and aliases: the same text for the same values, and readable."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    return str(yaml.dump_all(values, Dumper=Plain, sort_keys=False, explicit_start=explicit_start, width=120))
