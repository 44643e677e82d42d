"""`ttj render`."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import yaml

from torchtpu_operator.cli import sources
from torchtpu_operator.cli.sources import InputError
from torchtpu_operator.manifests.rayjob import Settings
from torchtpu_operator.manifests.rayjob import render as render_job


class _Dumper(yaml.CSafeDumper):
    """No anchors and aliases: the same text for the same objects, and readable."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def render(filenames: Sequence[str], as_json: bool, attempt: int, runtime_image: str | None) -> int:
    """Exit code: 0, or 2 for invalid input; then nothing is written."""
    try:
        jobs = sources.valid(filenames)
    except InputError as error:
        sources.tell(f"error: {error}")
        return 2
    settings = Settings(runtime_image) if runtime_image else Settings()
    objects = [item for job in jobs for item in render_job(job, attempt, settings)]
    sys.stdout.write(json.dumps(objects, indent=2) + "\n" if as_json else dump(objects))
    return 0


def dump(objects: Sequence[Any]) -> str:
    """YAML documents, keys in the order of the objects."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=120)
