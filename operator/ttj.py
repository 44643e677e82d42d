"""What a training script imports."""
