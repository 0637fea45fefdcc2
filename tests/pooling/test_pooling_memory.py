"""A long sequence needs no more memory than a short one, forward and backward."""

import subprocess
import sys

# A process of its own, because the high-water mark of one that has run other tests says nothing.
PROGRAM = """
import resource
import torch
from apood.pooling import attention_pool
from apood.tokens.batch import TokenBatch

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def pool(values):
    queries = torch.ones(HEADS, 2, 4).mul_(0.1).requires_grad_()
    pooled = attention_pool(TokenBatch.from_lengths(values, [len(values)]), queries, 0.5)
    (pooled.value.sum() + pooled.log_mass.sum()).backward()
    assert torch.isfinite(queries.grad).all()

torch.set_num_threads(1)
HEADS, LONG = 128, 1_000_000
values = torch.randn(LONG, 4, generator=torch.Generator().manual_seed(0))
pool(values[:4096])
before = peak()
pool(values)
print((peak() - before) / (LONG * HEADS * 2 * 4))
"""


def test_peak_memory_is_far_below_one_similarity_matrix():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert float(result.stdout) < 0.1
