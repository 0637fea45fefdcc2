"""Detectors on sounds of machines, with classes that the classifier was not trained on.

    python -m benchmarks.audio --data FOLDER [--seeds 3] [--pretraining-steps 600] [--steps 600]

FOLDER has .npz archives with `audio`, `sr` and `label`. Two of the eight classes of `esc50_machine.npz` are held out
(the near OOD set); all other archives are OOD. A quarter of the sounds of the other six classes is for testing. For
every seed, a classifier of the paper's shape is trained on the rest with masked-autoencoder pretraining, and the
detectors are fitted on its tokens or logits. The table has the mean over the seeds.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from apood.backbones.audio_classifier import AudioRecipe, split_sounds, train_audio_classifier
from apood.backbones.training_loop import Schedule
from apood.data.record import Record, Sound
from apood.data.sounds import read_sounds
from apood.encoders.audio.encoder import AudioEncoder
from apood.encoders.embed import embed_to_store
from apood.evaluation.comparison import ComparisonPlan, compare
from apood.evaluation.entry import Entry
from apood.evaluation.result import MEAN, Result
from apood.fitting.optimise import Checkpoint

_MACHINES = "esc50_machine"
_HELD_OUT = ("engine", "hand_saw")
_METHODS = (
    Entry("mahalanobis"),
    Entry("mahalanobis", {"normalize": "pooled"}),
    Entry("knn", {"k": 1}),
    Entry("deep-svdd"),
    Entry("msp"),
    Entry("energy"),
    Entry("ap-ood"),
    Entry("ap-ood", {"recipe": "paper", "heads": 128, "queries": 8}, "ap-ood, the paper's M = 128, T = 8"),
    Entry("fusion"),
)


def read_sounds_of(path: Path) -> list[Sound]:
    return [record.item for record in read_sounds([str(path)]) if isinstance(record, Record)]


def run_seed(data: Path, work: Path, seed: int, pretraining: int, steps: int) -> tuple[list[Result], float, float]:
    """Return the results on the tokens of one classifier, its accuracy, and the minutes of its training."""
    machines = read_sounds_of(data / f"{_MACHINES}.npz")
    known = [sound for sound in machines if sound.label not in _HELD_OUT]
    learned, tested = split_sounds(known, 0.25, seed)
    sets = {"train": learned, "test": tested, "machines": [s for s in machines if s.label in _HELD_OUT]}
    others = [path for path in sorted(data.glob("*.npz")) if path.stem != _MACHINES]
    sets |= {path.stem.removeprefix("esc50_"): read_sounds_of(path) for path in others}

    def schedule(count: int, rate: float) -> Schedule:
        return Schedule(count, rate, warm_up=0.1, weight_decay=0.05, seed=seed)

    recipe = AudioRecipe(schedule(pretraining, 1e-3) if pretraining else None, schedule(steps, 3e-3))
    started = time.perf_counter()
    report = train_audio_classifier(
        learned, tested, work / "model", recipe, checkpoint=Checkpoint(work / "checkpoint", every_seconds=3600)
    )
    minutes = (time.perf_counter() - started) / 60
    encoder = AudioEncoder(work / "model")
    for name, own in sets.items():
        embed_to_store([Record(sound, f"sound {i}") for i, sound in enumerate(own)], encoder, work / name)
    plan = ComparisonPlan(
        {name: work / name for name in sets if name not in ("train", "test")},
        id_train=work / "train",
        id_test=work / "test",
        methods=_METHODS,
        splits=1,
        share=1,
        seed=seed,
    )
    return compare(plan).results, report["accuracy"], minutes


def table(runs: Sequence[list[Result]]) -> None:
    datasets = [row["dataset"] for row in runs[0][0].runs[0].rows]
    names = [name if name != MEAN else "mean" for name in datasets]
    print(f"| AUROC / FPR95, % | {' | '.join(names)} |\n|{' --- |' * (1 + len(names))}")
    for results in zip(*runs, strict=True):
        cells = [
            " / ".join(
                f"{fmean(own.summarize(name, metric).mean for own in results):.1f}" for metric in ("auroc", "fpr95")
            )
            for name in datasets
        ]
        print(f"| {results[0].entry.label} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description="Detectors on the tokens of a classifier of sounds.")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pretraining-steps", type=int, default=600)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    runs = []
    for seed in range(options.seeds):
        with TemporaryDirectory(prefix="apood-audio-") as work:
            results, accuracy, minutes = run_seed(
                options.data, Path(work), seed, options.pretraining_steps, options.steps
            )
        print(f"seed {seed}: validation accuracy {100 * accuracy:.1f}%, trained in {minutes:.1f} minutes", flush=True)
        runs.append(results)
    print()
    table(runs)


if __name__ == "__main__":
    main()
