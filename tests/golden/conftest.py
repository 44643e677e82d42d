import pytest
import yaml
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from torchtpu_operator.cli.documents import dump


class Yaml(SingleFileSnapshotExtension):
    """One readable YAML file for each case."""

    file_extension = "yaml"
    _write_mode = WriteMode.TEXT

    def serialize(self, data, **_):
        return "---\n".join(dump(item, "yaml") for item in data)


@pytest.fixture
def golden(snapshot):
    return snapshot.use_extension(Yaml)


@pytest.fixture(autouse=True)
def _no_aliases():
    assert "&" not in dump([{"a": [1]}], "yaml")
    assert yaml.safe_load(dump([{"a": [1]}], "yaml")) == [{"a": [1]}]
