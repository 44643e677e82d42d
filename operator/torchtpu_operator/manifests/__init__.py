"""TorchTPUJob -> KubeRay objects as plain JSON values. Pure and deterministic."""
