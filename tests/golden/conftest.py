import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from torchtpu_operator.cli.forms import documents


class Yaml(SingleFileSnapshotExtension):
    """One readable YAML file for each case, as `ttj render` writes it."""

    file_extension = "yaml"
    _write_mode = WriteMode.TEXT

    def serialize(self, data, **_):
        return documents(data)


@pytest.fixture
def golden(snapshot):
    return snapshot.use_extension(Yaml)
