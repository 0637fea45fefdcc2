"""What the default gains and loses by `sentences=True`: whole foreign texts, and ID texts with one foreign sentence.

    python -m benchmarks.sentences CORPORA DATA NAME=MODEL_FOLDER CORPUS [CORPUS ...]

The corpora are those of `apood bench text`, cut to 1,000 texts to learn from and 250 per set to test. Cells are AUROC /
FPR95, and the share of a set that is refused if 5% of the ID texts are, in percent. All columns come from one fit: the
score of the default is the sum of its members without `coherence`.
"""

import sys

import numpy as np
import numpy.typing as npt

from apood.detectors.fusion import Fusion
from apood.evaluation.metrics import auroc, fpr95
from apood.experiments.text.texts import OOD, SPLICED, TEST, TRAIN
from benchmarks.text_sets import open_corpora

__all__: list[str] = []

LEARNT, TESTED = 1000, 250
REFUSED = 0.05  # share of the ID texts

Scores = npt.NDArray[np.float64]


def score_three_ways(detector: Fusion, tokens: object) -> dict[str, Scores]:
    """Return the scores of the default, of coherence alone, and of both together."""
    parts = detector.member_scores(tokens)
    sentences = parts.pop("coherence")
    whole = np.sum(list(parts.values()), axis=0)
    return {"default": whole, "coherence": sentences, "default with sentences": np.minimum(whole, sentences)}


def format_cell(genuine: Scores, foreign: Scores) -> str:
    """Return AUROC, FPR95 and the share of foreign texts that are refused."""
    refused = float((foreign < np.quantile(genuine, REFUSED)).mean())
    return f"{100 * auroc(genuine, foreign).value:.1f} / {100 * fpr95(genuine, foreign).value:.0f}, {refused:.0%}"


def main(arguments: list[str]) -> None:
    """Print a table per corpus."""
    for texts, encoder in open_corpora("benchmarks.sentences", arguments):
        detector = Fusion(sentences=True).fit(encoder.encode(texts[TRAIN][:LEARNT]))
        genuine = score_three_ways(detector, encoder.encode(texts[TEST][:TESTED]))
        print("| set | " + " | ".join(genuine) + " |")
        print("| --- |" + " ---: |" * len(genuine))
        for role in (role for role in texts if role.startswith((OOD, SPLICED))):
            foreign = score_three_ways(detector, encoder.encode(texts[role][:TESTED]))
            cells = [format_cell(genuine[name], foreign[name]) for name in genuine]
            name = role.removeprefix(OOD).replace(SPLICED, "one sentence of ")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
