"""A fit on a sample against the fit on everything: `python -m benchmarks.sample_fit --help`. It needs no Ray.

The documents are embedded once. The default detector is fitted on all of them, and on the sample that `apood fit
--engine ray --sample` draws: those with the smallest keys. The latter is then refined with everything.
The table has the AUROC of each on held-out documents against each OOD set.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from apood.data.inputs import read_records
from apood.data.record import Record, keep_good
from apood.detectors.contract.refinable import Measured, Remembered
from apood.detectors.fusion import Fusion
from apood.encoders.embed import embed_to_store
from apood.encoders.text.encoder import TextEncoder
from apood.evaluation.metrics import auroc
from apood.scale.sampling import compute_key
from apood.tokens.source import Subset, TokenSource, token_budget
from apood.tokens.store import TokenStore

__all__ = ["main"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--train", required=True, help="file of in-distribution texts, as for `apood embed`")
    parser.add_argument("--test", required=True, help="file of other in-distribution texts")
    parser.add_argument("--ood", action="append", required=True, metavar="NAME=FILE", help="may be repeated")
    parser.add_argument("--field", help="field of the text")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="folder for the token stores; a temporary one by default")
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="apood-sample-"))
    try:
        encoder = TextEncoder(options.model, logprobs=False)

        def embed(file: str, name: str, most: int | None = None) -> TokenStore:
            records = keep_good(read_records([file], field=options.field), None)
            embed_to_store(
                (Record(r.item, r.place) for r in islice(records, most)), encoder, work / name, resume=True, total=most
            )
            return TokenStore(work / name)

        train, test = embed(options.train, "train", options.documents), embed(options.test, "test")
        sets = {name: embed(file, f"ood-{name}") for name, _, file in (text.partition("=") for text in options.ood)}
        _compare(train, test, sets, options.share, options.seed)
    finally:
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)


def _compare(train: TokenStore, test: TokenStore, sets: dict[str, TokenStore], share: float, seed: int) -> None:
    keys = np.array([compute_key(seed, 0, number) for number in range(len(train))])
    chosen = np.sort(np.argsort(keys, kind="stable")[: round(share * len(train))])
    print(f"| AUROC | {' | '.join(sets)} | mean | seconds |\n|{' --- |' * (len(sets) + 3)}")
    rows = []
    for name, source in ((f"all {len(train):,}", train), (f"sample of {len(chosen):,}", Subset(train, chosen))):
        started = time.perf_counter()
        detector = Fusion(seed=seed).fit(source)
        rows.append(_print_row(name, detector, test, sets, time.perf_counter() - started))
    started = time.perf_counter()
    detector.refine(*_measure(detector, train))
    rows.append(_print_row("sample, refined by all", detector, test, sets, time.perf_counter() - started))
    refined, alone = rows[2] - rows[0], rows[1] - rows[0]
    print(f"\nThe refined sample has {refined:+.2f} AUROC on average, the sample alone {alone:+.2f}.")


def _measure(detector: Fusion, source: TokenSource) -> tuple[Measured, Remembered]:
    total: Measured | None = None
    rows = []
    for batch in source.batches(token_budget(source.dim)):
        own = detector.measure(batch)
        total = own if total is None else detector.merge_measured(total, own)
        rows.append(detector.remember(batch))
    assert total is not None
    return total, {name: torch.cat([own[name] for own in rows]) for name in rows[0]}


def _print_row(name: str, detector: Fusion, test: TokenStore, sets: dict[str, TokenStore], seconds: float) -> float:
    inside = detector.score_samples(test)
    found = [100 * auroc(inside, detector.score_samples(ood)).value for ood in sets.values()]
    mean = statistics.mean(found)
    print(f"| {name} | {' | '.join(f'{x:.2f}' for x in found)} | {mean:.2f} | {seconds:.0f} |", flush=True)
    return mean


if __name__ == "__main__":
    main()
