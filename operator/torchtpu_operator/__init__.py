"""TorchTPU: one small resource becomes ranked PyTorch processes on Cloud TPU slices."""

__version__ = "0.1.0"
