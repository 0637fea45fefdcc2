"""How many foreign texts among the training texts `apood.audit` finds, and what it gives back to remove them.

    python -m benchmarks.audit CORPORA DATA NAME=MODEL_FOLDER CORPUS [CORPUS ...]

The corpora are those of `apood bench text`, and the foreign texts those of `python -m benchmarks.robustness`. Somebody
looks through the 10% of the training texts that fit the others least, and removes the foreign ones among them.
"""

import sys

import numpy as np

import apood
from apood.detectors.fusion import default_detector
from apood.experiments.text.texts import TRAIN
from benchmarks.robustness import MOST, divide_foreign, measure
from benchmarks.text_sets import open_corpora

__all__: list[str] = []

SHARES = (0.01, 0.05)
LOOKED_THROUGH = 0.1  # of the training texts


def main(arguments: list[str]) -> None:
    for sets in open_corpora("benchmarks.audit", arguments):
        foreign, inputs = divide_foreign(sets)
        train = sets.texts[TRAIN][:MOST]
        print("| foreign texts | among as many | among 10% | default on all | default without those found |")
        print("| --- | ---: | ---: | ---: | ---: |")
        for share in SHARES:
            count = round(share * len(train))
            tokens = sets.encoder.encode([*train[count:], *foreign[:count]])
            wrong = np.arange(len(train)) >= len(train) - count
            order = apood.audit(tokens).argsort(kind="stable")
            seen = order[: round(LOOKED_THROUGH * len(train))]
            found = seen[wrong[seen]]
            first = 100 * wrong[order[:count]].mean()
            before = measure(default_detector().fit(tokens), inputs)
            kept = np.setdiff1d(np.arange(len(train)), found)
            after = measure(default_detector().fit(tokens.select(kept)), inputs)
            print(
                f"| {count} of {len(train):,} | {first:.0f}% | {100 * len(found) / count:.0f}% | {before} | {after} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
