"""Ports, kept off each other.

Taken by others on a TPU host: 8431-8438 libtpu metrics, 8080-8095 megascale under torch_tpu (8080 + 2 * local rank and
the next), 8070+ torch_tpu's own default, 36423 its handshake, 12355 torch_xla's default store, 8482 JAX, 8353 and 2112
on the node. Ray: 6379, 8265, 10001, 8000, 52365.
"""

RAY_GCS = 6379
RAY_DASHBOARD = 8265
RAY_CLIENT = 10001
RAY_METRICS = 8180  # not Ray's usual 8080: megascale uses that one
MASTER = 29500  # torch's store on the host of rank 0
SLICE_BUILDER_TORCH_TPU = 8471  # + device index, as Google's TPU webhook has it
SLICE_BUILDER_TORCH_XLA = 8476  # + device index, torch_xla's own base
MEGASCALE_TORCH_TPU = 8080  # fixed inside torch_tpu 0.2.0
MEGASCALE_TORCH_XLA = 8081  # + device index, as Ray and the webhook have it
