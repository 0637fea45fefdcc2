"""What the default and its members lose by few, foreign or copied training texts.

    python -m benchmarks.robustness CORPORA DATA NAME=MODEL_FOLDER CORPUS [CORPUS ...]

The corpora are those of `apood bench text`. Cells are AUROC / FPR95 in percent, mean over the OOD sets. Foreign
training texts are drawn from all OOD sets, and are not tested. A copy is a training text without one of its words.
"""

import random
import sys
from collections.abc import Iterator

import numpy as np

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.base import Detector
from apood.detectors.fusion import default_detector
from apood.detectors.knn import KNN, MahalanobisKNN
from apood.evaluation.metrics import auroc, fpr95
from apood.experiments.text.texts import TEST, TRAIN
from apood.tokens.batch import TokenBatch
from benchmarks.text_sets import TextSets, open_corpora

__all__ = ["MOST", "divide_foreign", "measure"]

MOST = 2000  # training texts
FEW = (40, 60, 100, 200, 500)
FOREIGN = (0.0, 0.01, 0.05)
COPIED = (0.3, 1.0)


def make_methods() -> dict[str, Detector]:
    return {
        "default": default_detector(),
        "AP-OOD": APOOD(),
        "Mahalanobis-KNN 3": MahalanobisKNN(k=3, average=True),
        "KNN 3": KNN(k=3, average=True),
    }


def make_variants(train: list[str], foreign: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield training sets with their names."""
    dice = random.Random(0)
    for count in [few for few in FEW if few < len(train)]:
        yield f"{count} texts", train[:count]
    for share in FOREIGN:
        count = round(share * len(train))
        yield f"{len(train)} texts, {share:.0%} foreign", [*train[count:], *foreign[:count]]
    for share in COPIED:
        copies = [_drop_word(text, dice) for text in train[: round(share * len(train))]]
        yield f"{len(train)} texts and {share:.0%} of them copied", [*train, *copies]


def _drop_word(text: str, dice: random.Random) -> str:
    words = text.split()
    if len(words) > 1:
        words.pop(dice.randrange(len(words)))
    return " ".join(words)


def main(arguments: list[str]) -> None:
    for sets in open_corpora("benchmarks.robustness", arguments):
        texts, encoder = sets
        foreign, inputs = divide_foreign(sets)
        print("| training texts | " + " | ".join(make_methods()) + " |")
        print("| --- | " + " | ".join("---:" for _ in make_methods()) + " |")
        for variant, own in make_variants(texts[TRAIN][:MOST], foreign):
            train = encoder.encode(own)
            cells = [measure(method.fit(train), inputs) for method in make_methods().values()]
            print(f"| {variant} | {' | '.join(cells)} |", flush=True)


def divide_foreign(sets: TextSets) -> tuple[list[str], dict[str, TokenBatch]]:
    """Return OOD texts to put among the training texts, and the tokens of the other OOD texts and of the ID texts."""
    texts, encoder = sets
    fifths = {role: len(texts[role]) // 5 for role in sets.ood}
    foreign = [text for role, fifth in fifths.items() for text in texts[role][:fifth]]
    random.Random(0).shuffle(foreign)
    tested = {TEST: texts[TEST]} | {role: texts[role][fifth:] for role, fifth in fifths.items()}
    return foreign, {role: encoder.encode(own) for role, own in tested.items()}


def measure(detector: Detector, inputs: dict[str, TokenBatch]) -> str:
    """Return AUROC / FPR95, mean over the OOD sets."""
    genuine = detector.score_samples(inputs[TEST])
    foreign = [detector.score_samples(own) for role, own in inputs.items() if role != TEST]
    values = [np.mean([100 * metric(genuine, own).value for own in foreign]) for metric in (auroc, fpr95)]
    return f"{values[0]:.1f} / {values[1]:.0f}"


if __name__ == "__main__":
    main(sys.argv[1:])
