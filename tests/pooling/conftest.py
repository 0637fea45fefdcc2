"""Tests of the kernels need Triton, which exists for Linux alone."""

from apood.pooling.attention import has_triton

collect_ignore_glob = [] if has_triton() else ["test_fused*"]
