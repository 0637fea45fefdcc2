"""How well `coherence` finds one foreign sentence in a text, and what its channel adds to the time of an encoder pass.

    python -m benchmarks.splices CORPORA DATA NAME=MODEL_FOLDER CORPUS [CORPUS ...]

The corpora and their spliced sets are those of `apood bench text`. The method reads the channel `sentences` alone, so
the corpora are tokenised, and the transformer runs for the times only: encoder passes over a few test texts, with the
channel and without it in turn.
"""

import statistics
import sys
import time

import numpy as np

from apood.detectors.coherence import Coherence
from apood.encoders.text.encoder import TextEncoder
from apood.encoders.text.sentences import embed_sentences
from apood.evaluation.metrics import auroc, fpr95
from apood.experiments.text.texts import SPLICED, TEST, TRAIN
from apood.tokens.batch import TokenBatch
from benchmarks.text_sets import TextSets, open_corpora

REFUSED = 0.05  # of the ID texts for testing
TIMED, ROUNDS = 10, 5  # texts, and passes over them with the channel and without it


def read_texts(encoder: TextEncoder, texts: list[str]) -> TokenBatch:
    """Return the channel `sentences` of texts without a pass of the transformer."""
    sentences = encoder.prepare(texts).sentences
    assert sentences is not None
    embeddings = encoder._pass.model.model.get_input_embeddings()
    return TokenBatch.without_tokens(sentences=embed_sentences(embeddings, sentences))


def print_splices(sets: TextSets) -> None:
    """Fit on the training texts, and print a row per spliced set."""
    texts, encoder = sets
    detector = Coherence().fit(read_texts(encoder, texts[TRAIN]))
    genuine_rows = read_texts(encoder, texts[TEST])
    genuine = detector.score_samples(genuine_rows)
    threshold = np.quantile(genuine, REFUSED)
    several = float((genuine_rows.channels["sentences"].lengths > 1).float().mean())
    print(f"{len(genuine)} ID texts for testing, {several:.0%} of them with two or more sentences.\n")
    print(f"| the sentence is from | texts | AUROC | FPR95 | refused, beside {REFUSED:.0%} of the ID texts |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for role in [role for role in texts if role.startswith(SPLICED)]:
        scores = detector.score_samples(read_texts(encoder, texts[role]))
        found = [100 * metric(genuine, scores).value for metric in (auroc, fpr95)]
        refused = 100 * (scores < threshold).mean()
        cells = [str(len(scores)), f"{found[0]:.1f}", f"{found[1]:.0f}", f"{refused:.0f}"]
        print(f"| {role.removeprefix(SPLICED)} | {' | '.join(cells)} |", flush=True)


def print_time(sets: TextSets, folder: str) -> None:
    """Print how much longer an encoder pass is with the channel than without."""
    some = sets.texts[TEST][:TIMED]
    options = {"max_tokens": sets.encoder.max_tokens, "on_long": "beginning"}
    encoders = [TextEncoder(folder, sentences=wanted, **options) for wanted in (False, True)]
    seconds: list[list[float]] = [[], []]
    for number in range(-1, ROUNDS):
        for own, encoder in zip(seconds, encoders, strict=True):
            start = time.perf_counter()
            encoder.encode(some)
            if number >= 0:  # the first pass warms up
                own.append(time.perf_counter() - start)
    ratios = sorted(after / before for before, after in zip(*seconds, strict=True))
    print(
        f"\nA pass over {len(some)} of the ID texts for testing takes {statistics.median(ratios):.3f} times as long "
        f"with the channel as without ({ratios[0]:.3f} to {ratios[-1]:.3f} in {ROUNDS} rounds)."
    )


def main(arguments: list[str]) -> None:
    for sets in open_corpora("benchmarks.splices", arguments):
        print_splices(sets)
        print_time(sets, arguments[2].partition("=")[2])


if __name__ == "__main__":
    main(sys.argv[1:])
