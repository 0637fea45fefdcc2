"""Triton kernels of attention pooling, and what launches them; imported only where Triton is installed."""
