"""Runs rendered objects on this machine: simulated TPU hosts on a local Ray."""
