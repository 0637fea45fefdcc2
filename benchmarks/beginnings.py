"""How many beginnings of genuine texts are accepted, and how well they are told from beginnings of foreign texts.

    python -m benchmarks.beginnings CORPORA DATA NAME=MODEL_FOLDER CORPUS [CORPUS ...]

The corpora are those of `apood bench text`. The default is fitted on whole training texts and calibrated on whole
validation texts, once as it is and once with `beginnings=True`, and decides on the first words of test texts.
"""

import sys

import numpy as np

from apood.detectors.contract.base import Detector
from apood.detectors.fusion import default_detector
from apood.encoders.text.encoder import TextEncoder
from apood.evaluation.metrics import auroc
from apood.experiments.text.texts import OOD, TEST, TRAIN, VALIDATION
from apood.tokens.batch import TokenBatch
from benchmarks.text_sets import open_corpora

WORDS = (10, 40, 80, 180, None)

Inputs = dict[tuple[str, int | None], TokenBatch | None]


def main(arguments: list[str]) -> None:
    for sets in open_corpora("benchmarks.beginnings", arguments):
        texts, encoder = sets
        train, held_out = encoder.encode(texts[TRAIN]), encoder.encode(texts[VALIDATION])
        inputs: Inputs = {
            (role, words): _encode(encoder, texts[role], words) for role in (TEST, *sets.ood) for words in WORDS
        }
        print("| words | beginnings | accepted, % | " + " | ".join(role.removeprefix(OOD) for role in sets.ood) + " |")
        print("| --- | --- | ---: | " + " | ".join("---:" for _ in sets.ood) + " |")
        detectors = {use: default_detector(beginnings=use).fit(train).calibrate(held_out) for use in (False, True)}
        for words in WORDS:
            for use, detector in detectors.items():
                _print_row(words, use, detector, inputs, sets.ood)


def _encode(encoder: TextEncoder, texts: list[str], words: int | None) -> TokenBatch | None:
    """Return the tokens of the first words of the texts that have more; None if there are fewer than 20."""
    if words is None:
        return encoder.encode(texts)
    cut = [" ".join(text.split()[:words]) for text in texts if len(text.split()) > words]
    return encoder.encode(cut) if len(cut) >= 20 else None


def _print_row(words: int | None, use: bool, detector: Detector, inputs: Inputs, ood: list[str]) -> None:
    if inputs[TEST, words] is None:
        return
    genuine = detector.score_samples(inputs[TEST, words])
    cells = [f"{100 * np.mean(detector.decide(genuine) == 1):.0f}"]
    for role in ood:
        foreign = inputs[role, words]
        cells.append("-" if foreign is None else f"{100 * auroc(genuine, detector.score_samples(foreign)).value:.1f}")
    print(f"| {words or 'all'} | {'learnt' if use else 'no'} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
