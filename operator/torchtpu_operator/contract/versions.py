"""Which versions fit together; checked before anything starts."""

RAY_VERSION = "2.60.0"  # written as `rayVersion`; what the tests run
RAY_MINIMUM = (2, 60)  # older: no several slices for torch, TPU_VISIBLE_CHIPS wrong on a whole host
PYTHON_MINIMUM = (3, 11)  # torch_tpu 0.2.0 has no wheel for 3.10
PYTHON_MAXIMUM = (3, 13)  # torch_xla 2.9.0 has none for 3.14
KUBERAY_MINIMUM = (1, 6)  # multi-host indexing labels on by default
