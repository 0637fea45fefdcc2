"""Triton kernels of attention pooling and their launchers; imported only where Triton is installed."""
