"""`ttj render`."""

import sys
from collections.abc import Sequence

from torchtpu_operator.cli import sources
from torchtpu_operator.cli.forms import Form, documents, written
from torchtpu_operator.cli.sources import InputError
from torchtpu_operator.manifests.rayjob import Settings
from torchtpu_operator.manifests.rayjob import render as render_job


def render(filenames: Sequence[str], form: Form, attempt: int, runtime_image: str | None) -> int:
    """Exit code: 0, or 2 for invalid input; then nothing is written."""
    try:
        jobs = sources.valid(filenames)
    except InputError as error:
        sources.tell(f"error: {error}")
        return 2
    settings = Settings(runtime_image) if runtime_image else Settings()
    objects = [item for job in jobs for item in render_job(job, attempt, settings)]
    sys.stdout.write(documents(objects) if form == "yaml" else written(objects, form))
    return 0
