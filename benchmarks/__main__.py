"""All benchmarks for this machine: `python -m benchmarks`, or `make bench`."""

import torch

from benchmarks import detectors, pooling
from benchmarks.timing import report

if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    report(device, [*pooling.rows(device), *detectors.rows(device)])
