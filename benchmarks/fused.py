"""Encode and score as a worker of a cluster does, against the encoder alone: `python -m benchmarks.fused --help`.

The worker reads a part, encodes, scores and commits its units. It needs no Ray for that, nor does this module. The
encoder alone reads the same documents and encodes them in the loop of `apood embed`, without a store. Both are timed in
turns; the ratio of the medians of their rates is printed.
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
    try:
        given = [record.item for record in keep_good(read_records([options.data], field=options.field), None)]
        corpus = root / "corpus.jsonl"
        with corpus.open("w", encoding="utf-8") as file:
            for text in islice(cycle(given), options.documents):
                file.write(json.dumps({"text": text}) + "\n")
        encoder = TextEncoder(options.model, max_tokens=options.max_tokens, logprobs=False)
        TextDetector(encoder).fit(given[:_LEARNT]).save(root / "detector")
        del encoder
        _compare(root, corpus, options.rounds, options.documents)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _compare(root: Path, corpus: Path, rounds: int, documents: int) -> None:
    settings = Settings(str(root / "out"), Request(), detector=str(root / "detector"))
    worker = ScoreWorker(settings)
    parts = find_parts([str(corpus)], 1 << 40)
    alone, fused = [], []
    for number in range(rounds + 1):  # the first round warms up
        started = time.perf_counter()
        tokens = 0
        records = (record for part in parts for record in read_part(part, Request()) if isinstance(record, Record))
        for portion in encode_portions(records, worker.encoder):
            tokens += len(portion.batch.values)
        between = time.perf_counter()
        shutil.rmtree(root / "out", ignore_errors=True)
        job = Job.plan("score", [str(corpus)], settings, {})
        job.begin()
        for place, part in enumerate(parts):
            worker.process(place, part)
        ended = time.perf_counter()
        if number:
            alone.append(documents / (between - started))
            fused.append(documents / (ended - between))
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    one, both = statistics.median(alone), statistics.median(fused)
    print(f"{name}: {documents:,} documents of {tokens:,} tokens, {rounds} rounds")
    print("| what | documents per second | ratio |\n| --- | --- | --- |")
    print(f"| encoder alone | {one:,.0f} | 1 |\n| read, encode, score, commit | {both:,.0f} | {both / one:.3f} |")


if __name__ == "__main__":
    main()
