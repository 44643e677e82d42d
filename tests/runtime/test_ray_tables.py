"""What the catalogue says of Ray's names and tables, against the Ray that is installed."""

import pytest
from ray._private.accelerators import tpu as ray_tpu

from torchtpu_operator.tpu.environment import pod_environment
from torchtpu_operator.tpu.generations import GENERATIONS
from torchtpu_operator.tpu.slices import slice_shape, topologies


@pytest.mark.parametrize("name", GENERATIONS)
def test_ray_takes_what_carries_no_warning(name: str) -> None:
    generation = GENERATIONS[name]
    table = ray_tpu.VALID_TPU_TOPOLOGY[generation.ray_version]
    for topology in topologies(generation):
        warned = any(warning.startswith("Ray") for warning in slice_shape(name, topology).warnings)
        assert warned == (topology not in table), topology


@pytest.mark.parametrize("name", GENERATIONS)
def test_ray_reads_the_pod_type_as_the_same_chips(name: str) -> None:
    generation = GENERATIONS[name]
    for topology in topologies(generation):
        shape = slice_shape(name, topology)
        assert ray_tpu.TPUAcceleratorManager.is_valid_tpu_accelerator_type(shape.ray_pod_type)
        assert ray_tpu.get_total_chips_from_accelerator_type(shape.ray_pod_type) == shape.chips
        assert ray_tpu.get_num_chips_from_topology(topology) == shape.chips


@pytest.mark.parametrize("name", GENERATIONS)
def test_ray_derives_the_same_pod_type_from_the_pod(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for topology in list(topologies(GENERATIONS[name]))[:6]:
        shape = slice_shape(name, topology)
        for variable, value in pod_environment(shape).items():
            monkeypatch.setenv(variable, value)
        assert ray_tpu.TPUAcceleratorManager.get_current_node_tpu_pod_type() == shape.ray_pod_type
        assert ray_tpu.TPUAcceleratorManager.get_current_node_accelerator_type() == shape.ray_accelerator_type
