"""TorchTPUJob: its models, its rules, reading documents, and the CRD made from them."""
