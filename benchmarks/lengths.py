"""Whether acceptance depends on the length of a text, and whether ordinary words hide a foreign text.

    python -m benchmarks.lengths CORPORA DATA NAME=MODEL_FOLDER CORPUS [CORPUS ...]

The corpora are those of `apood bench text`. Methods are fitted on the training texts and calibrated on the validation
texts. The first table has the share of test texts that each accepts, by quarters of their number of tokens. The second
has the share of foreign texts that each refuses: their first words alone, and followed by words of ordinary test texts.
"""

import random
import sys

import numpy as np

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.base import Detector
from apood.detectors.fusion import default_detector
from apood.detectors.knn import KNN, MahalanobisKNN
from apood.detectors.mahalanobis import Mahalanobis
from apood.evaluation.metrics import auroc
from apood.experiments.text.texts import OOD, TEST, TRAIN, VALIDATION
from apood.tokens.batch import TokenBatch
from benchmarks.text_sets import TextSets, open_corpora

FOREIGN = 100  # words of a foreign text; longer ones are cut, so that what follows is still read
ADDED = (0, 1, 2)  # ordinary words, as a multiple of the foreign ones
MOST = 300  # texts of a set

METHODS: dict[str, Detector] = {
    "default": default_detector(),
    "AP-OOD": APOOD(),
    "Mahalanobis-KNN 3": MahalanobisKNN(k=3, average=True),
    "KNN 3": KNN(k=3, average=True),
    "Mahalanobis": Mahalanobis(),
}


def dilute(texts: list[str], ordinary: list[str], times: int) -> list[str]:
    """Return the first words of the texts, each followed by `times` as many words of ordinary texts."""
    dice = random.Random(0)
    mixed = []
    for text in texts[:MOST]:
        words = text.split()[:FOREIGN]
        wanted = times * len(words)
        added: list[str] = []
        while len(added) < wanted:
            added += dice.choice(ordinary).split()
        mixed.append(" ".join([*words, *added[:wanted]]))
    return mixed


def print_quarters(detectors: dict[str, Detector], test: TokenBatch) -> None:
    """Print the share of test texts that each method accepts, by quarters of their length."""
    limits = np.quantile(test.lengths.numpy(), [0.25, 0.5, 0.75])
    quarters = np.searchsorted(limits, test.lengths.numpy(), side="left")
    names = [f"up to {limits[0]:.0f} tokens", f"up to {limits[1]:.0f}", f"up to {limits[2]:.0f}", "more", "all"]
    print(f"| accepted, % | {' | '.join(names)} |")
    print("| --- | " + " | ".join("---:" for _ in names) + " |")
    for name, detector in detectors.items():
        accepted = detector.predict(test) == 1
        shares = [accepted[quarters == number] for number in range(4)]
        cells = [f"{100 * own.mean():.0f}" if len(own) else "-" for own in [*shares, accepted]]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def print_dilution(detectors: dict[str, Detector], sets: TextSets) -> None:
    """Print how many foreign texts each method refuses, alone and followed by ordinary words, and the AUROC."""
    texts, encoder = sets
    print("\n| refused, % (AUROC) | ordinary words | " + " | ".join(role.removeprefix(OOD) for role in sets.ood) + " |")
    print("| --- | ---: | " + " | ".join("---:" for _ in sets.ood) + " |")
    rows: dict[str, list[str]] = {name: [] for name in detectors}
    for times in ADDED:
        inputs = {role: encoder.encode(dilute(texts[role], texts[TEST], times)) for role in (TEST, *sets.ood)}
        for name, detector in detectors.items():
            genuine = detector.score_samples(inputs[TEST])
            cells = []
            for role in sets.ood:
                foreign = detector.score_samples(inputs[role])
                refused = 100 * np.mean(detector.decide(foreign) == -1)
                cells.append(f"{refused:.0f} ({100 * auroc(genuine, foreign).value:.0f})")
            rows[name].append(f"| {name} | {f'{times} x' if times else 'none'} | {' | '.join(cells)} |")
    for own in rows.values():
        print("\n".join(own), flush=True)


def main(arguments: list[str]) -> None:
    for sets in open_corpora("benchmarks.lengths", arguments):
        texts, encoder = sets
        train, held_out = encoder.encode(texts[TRAIN]), encoder.encode(texts[VALIDATION])
        detectors = {name: detector.fit(train).calibrate(held_out) for name, detector in METHODS.items()}
        print_quarters(detectors, encoder.encode(texts[TEST]))
        print_dilution(detectors, sets)


if __name__ == "__main__":
    main(sys.argv[1:])
