"""The PyTorch collector; its public door is :mod:`numprobe.pytorch`."""
