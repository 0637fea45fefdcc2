"""The default against the default of an earlier commit, on the same texts.

    python -m benchmarks.former CHECKOUT CORPORA DATA NAME=MODEL_FOLDER CORPUS [CORPUS ...]

CHECKOUT is a folder with the earlier commit, as made by `git worktree add CHECKOUT b40c501`. The earlier default reads
the last layer, as it did then; the present one reads the layers that apood chooses. The corpora are those of `apood
bench text`, cut to 2,000 texts to learn from and 500 per set to test. Rows are AUROC and FPR95 in percent, means over
the OOD sets, with 95% intervals of the differences.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apood.detectors.fusion import default_detector
from apood.encoders.text.encoder import TextEncoder
from apood.experiments.text.bootstrap import Floats, average, estimate_difference, resample
from apood.experiments.text.texts import TEST, TRAIN
from apood.tokens.batch import TokenBatch
from benchmarks.text_sets import open_corpora

__all__: list[str] = []

LEARNT, TESTED = 2000, 500

Scores = dict[str, npt.NDArray[np.float64]]

# Arrays alone go between the two versions, so that neither needs to read files of the other.
EARLIER = """
import sys
import numpy as np
from apood import default_detector
given = np.load(sys.argv[1])
names = [name.removeprefix("lengths ") for name in given if name.startswith("lengths ")]
sets = {name: np.split(given["values " + name], given["lengths " + name].cumsum()[:-1]) for name in names}
detector = default_detector().fit(sets.pop("train"))
np.savez(sys.argv[2], **{name: detector.score_samples(own) for name, own in sets.items()})
"""


def score_earlier(checkout: str, tokens: dict[str, TokenBatch]) -> Scores:
    """Return the scores of the default of an earlier commit."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "tokens.npz"), Path(folder, "scores.npz")
        arrays: dict[str, Any] = {f"values {name}": own.values.float().numpy() for name, own in tokens.items()}
        arrays |= {f"lengths {name}": own.lengths.numpy() for name, own in tokens.items()}
        np.savez(given, **arrays)
        environment = os.environ | {"PYTHONPATH": str(Path(checkout, "src").resolve())}
        subprocess.run([sys.executable, "-c", EARLIER, given, found], check=True, env=environment)
        return dict(np.load(found))


def score_present(tokens: dict[str, TokenBatch]) -> Scores:
    """Return the scores of the present default."""
    detector = default_detector().fit(tokens[TRAIN])
    return {name: detector.score_samples(own) for name, own in tokens.items() if name != TRAIN}


def resample_means(scores: Scores) -> Floats:
    """Return resampled AUROC and FPR95, mean over the OOD sets."""
    parts = {name: resample(scores[TEST], own, name) for name, own in scores.items() if name != TEST}
    means = average({name: part for name, part in parts.items() if part is not None})
    assert means is not None
    return means


def main(arguments: list[str]) -> None:
    checkout, *others = arguments
    folder = others[2].partition("=")[2]
    for sets in open_corpora(f"benchmarks.former {Path(checkout).name}", others):
        limits = {name: LEARNT if name == TRAIN else TESTED for name in (TRAIN, TEST, *sets.ood)}
        texts = {name: sets.texts[name][:limit] for name, limit in limits.items()}
        last = TextEncoder(folder, layers=-1, max_tokens=sets.encoder.max_tokens, on_long="beginning")
        before = resample_means(score_earlier(checkout, {name: last.encode(own) for name, own in texts.items()}))
        after = resample_means(score_present({name: sets.encoder.encode(own) for name, own in texts.items()}))
        print("| | earlier | present | present - earlier |\n| --- | ---: | ---: | ---: |")
        for metric, first, second in zip(("AUROC", "FPR95"), before, after, strict=True):
            change = estimate_difference([second], [first])
            print(
                f"| {metric} | {first[0]:.1f} | {second[0]:.1f} | "
                f"{change.value:+.1f} [{change.low:+.1f}, {change.high:+.1f}] |"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
