"""Encode and score as a worker of a cluster does, against the encoder alone: `python -m benchmarks.fused --help`.

The worker reads a part, encodes, scores and commits its units. It needs no Ray for that, nor does this module. The
encoder alone reads the same documents and encodes them in the loop of `apood embed`, without a store. Both are timed in
turns, after a short round of both that warms up. Each round is printed as soon as it is done, and at the end the ratio
of the medians of their rates. With SmolLM2 and 20,000 documents of 500 tokens, an H200 takes about four minutes.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

import torch

from apood.data.inputs import Request, read_records
from apood.data.parts import find_parts, read_part
from apood.data.record import Record, keep_good
from apood.encoders.embed import encode_portions
from apood.encoders.text.encoder import TextEncoder
from apood.pipeline.text_detector import TextDetector
from apood.scale.job import Job, Settings
from apood.scale.scoring import ScoreWorker

__all__ = ["main"]

_LEARNT = 2000  # documents that the detector is built from
_WARM = 1500  # documents of the round that warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--data", required=True, help="file of texts, as for `apood embed`; read again if it is short")
    parser.add_argument("--field", help="field of the text")
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=512)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="apood-fused-"))
    started = time.perf_counter()
    try:
        given = [record.item for record in keep_good(read_records([options.data], field=options.field), None)]
        encoder = TextEncoder(options.model, max_tokens=options.max_tokens, logprobs=False)
        TextDetector(encoder).fit(given[:_LEARNT]).save(root / "detector")
        del encoder
        worker = ScoreWorker(Settings(str(root / "out"), Request(), detector=str(root / "detector")))
        print(f"detector built in {time.perf_counter() - started:.0f} s", flush=True)
        _time_round(worker, _write_corpus(root / "warm.jsonl", given, min(_WARM, options.documents)))
        print(f"warmed up after {time.perf_counter() - started:.0f} s", flush=True)
        corpus = _write_corpus(root / "corpus.jsonl", given, options.documents)
        rounds = [_time_round(worker, corpus) for _ in range(options.rounds)]
    finally:
        shutil.rmtree(root, ignore_errors=True)
    alone, fused = (statistics.median(options.documents / own for own in times) for times in zip(*rounds, strict=True))
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}: {options.documents:,} documents, {options.rounds} rounds, {time.perf_counter() - started:.0f} s")
    print("| what | documents per second | ratio |\n| --- | --- | --- |")
    print(f"| encoder alone | {alone:,.0f} | 1 |\n| read, encode, score, commit | {fused:,.0f} | {fused / alone:.3f} |")


def _write_corpus(path: Path, texts: list[str], documents: int) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for text in islice(cycle(texts), documents):
            file.write(json.dumps({"text": text}) + "\n")
    return path


def _time_round(worker: ScoreWorker, corpus: Path) -> tuple[float, float]:
    """Return the seconds of the encoder alone, and those of all that a worker does."""
    parts = find_parts([str(corpus)], 1 << 40)
    shutil.rmtree(str(worker.place), ignore_errors=True)
    started = time.perf_counter()
    tokens = 0
    records = (record for part in parts for record in read_part(part, Request()) if isinstance(record, Record))
    for portion in encode_portions(records, worker.encoder):
        tokens += len(portion.batch.values)
    between = time.perf_counter()
    Job.plan("score", [str(corpus)], worker.settings, {}).begin()
    for place, part in enumerate(parts):
        worker.process(place, part)
    ended = time.perf_counter()
    found = between - started, ended - between
    print(
        f"{tokens:,} tokens: encoder alone {found[0]:.1f} s, read, encode, score, commit {found[1]:.1f} s", flush=True
    )
    return found


if __name__ == "__main__":
    main()
