"""`apood demo`: the main job on what every installation has, start to end and offline.

Python's own documentation is in-distribution. A detector learns it, is calibrated on held-out texts,
and meets texts of other kinds, among them documentation with a single foreign sentence in it.
"""

import shutil
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.artefact import refuse_foreign
from apood.detectors.contract.base import Detector, Scores
from apood.detectors.fusion import Fusion
from apood.detectors.knn import KNN
from apood.detectors.length import Length
from apood.detectors.mahalanobis import Mahalanobis
from apood.encoders.text.encoder import TextEncoder
from apood.evaluation.result import ResultRow, compute_mean_row, compute_rows
from apood.experiments.demo_model import minilm_folder
from apood.experiments.demo_texts import DemoTexts, demo_texts
from apood.explain.terminal import marked_text
from apood.report.grid import grid_of_rows
from apood.report.plots import plot_score_distributions
from apood.report.tables import TerminalTable
from apood.support.files import refuse_unwritable, write_json
from apood.support.progress import track
from apood.tokens.batch import TokenBatch

__all__ = ["run_demo"]

_MAX_TOKENS = 96
_SHOWN = 3
_DEFAULT = "default"


def _detectors(seed: int) -> dict[str, Detector]:
    return {
        _DEFAULT: Fusion(seed=seed),
        "AP-OOD": APOOD(seed=seed),
        "Mahalanobis": Mahalanobis(),
        "Mahalanobis, normalised": Mahalanobis(normalize="pooled"),
        "KNN": KNN(),
        "length only": Length(),
    }


def run_demo(out: Path, *, quick: bool, console: Console, seed: int = 0) -> list[ResultRow]:
    """Fits, compares, explains and saves; writes its findings to `out`."""
    started = time.monotonic()
    refuse_unwritable(out / "detector")
    refuse_foreign(out / "detector")
    model = minilm_folder()
    console.print("[bold]1.[/] Reading texts: the documentation of Python is in-distribution, all else is not.")
    texts = demo_texts(seed, quick)
    console.print(f"[bold]2.[/] Embedding them with MiniLM ({model}).", soft_wrap=True)
    encoder = TextEncoder(str(model), max_tokens=_MAX_TOKENS)
    parts = [texts.train, texts.calibration, texts.test, *texts.ood.values()]
    train, calibration, test, *others = (encoder.encode(part) for part in track(parts, "embed", len(parts)))
    ood = dict(zip(texts.ood, others, strict=True))
    tested = f"{len(test):,} ID and {sum(map(len, ood.values())):,} OOD texts to test on"
    console.print(f"   {len(train):,} texts to learn from, {tested}.")
    console.print("[bold]3.[/] Fitting and comparing the methods.")
    detectors = _detectors(seed)
    rows: list[ResultRow] = []
    scores: dict[str, dict[str, Scores]] = {}
    for name, detector in detectors.items():
        begun = time.monotonic()
        detector.fit(train).calibrate(calibration)
        scores[name] = {"ID": detector.score_samples(test)} | {k: detector.score_samples(v) for k, v in ood.items()}
        of_method = compute_rows(name, scores[name]["ID"], {k: v for k, v in scores[name].items() if k != "ID"})
        rows += [*of_method, compute_mean_row(of_method)]
        console.print(f"   {name}: {time.monotonic() - begun:.0f} s")
    console.print(
        TerminalTable(grid_of_rows(rows), title="AUROC (higher is better) above FPR95 (lower is better), percent")
    )
    console.print(
        "[bold]4.[/] Which words made it suspicious, in texts with one foreign sentence (repeated below each)."
    )
    default = detectors[_DEFAULT]
    assert isinstance(default, Fusion)
    _show_spliced(default, texts, ood, encoder, scores[_DEFAULT], console)
    default.save(out / "detector")
    write_json(out / "results.json", rows)
    plot_score_distributions(
        out / "scores.png", scores[_DEFAULT], threshold=default.threshold_, title="Scores of the default detector"
    )
    examples = [texts.test[0], *(part[0] for part in texts.ood.values())]
    (out / "texts.txt").write_text("\n".join(examples) + "\n", encoding="utf-8")
    console.print(
        f"Done in {time.monotonic() - started:.0f} s. Written to {escape(str(out))}: results.json, scores.png, "
        "texts.txt and the calibrated detector. Use it next:",
        soft_wrap=True,
    )
    command = f"{_program()} score {out / 'detector'} {out / 'texts.txt'}"
    console.print(
        f"  {escape(command)}",
        style="bold",
        soft_wrap=True,
        highlight=False,
    )
    return rows


def _program() -> str:
    """How to call apood from here: by its name where the shell would find it, else by its path."""
    return "apood" if shutil.which("apood") else str(Path(sys.executable).with_name("apood"))


def _show_spliced(
    detector: Fusion,
    texts: DemoTexts,
    tokens: dict[str, TokenBatch],
    encoder: TextEncoder,
    scores: dict[str, Scores],
    console: Console,
) -> None:
    """Some spliced texts that were refused, the words marked that gave them away."""
    for name, index in _middling_refused({name: scores[name] for name in texts.spliced}, detector.threshold_):
        batch = tokens[name].select([index])
        pieces = encoder.pieces(batch.channels["input_ids"].sequence(0))
        contributions = detector.token_contributions(batch).sequence(0).tolist()
        console.print(Padding(marked_text(pieces, contributions), (1, 0, 0, 3)))
        foreign = texts.spliced[name][index]
        console.print(f"   [dim]foreign ({name}): {escape(foreign.text[foreign.start : foreign.end])}[/]")
    console.print()


def _middling_refused(scores: dict[str, Scores], threshold: float) -> list[tuple[str, int]]:
    """Set and index of the refused texts at the quartiles of all: neither the easiest nor the hardest."""
    refused = sorted(
        (float(own[index]), name, int(index))
        for name, own in scores.items()
        for index in np.flatnonzero(own < threshold)
    )
    shown = min(_SHOWN, len(refused))
    return [refused[(place + 1) * len(refused) // (shown + 1)][1:] for place in range(shown)]
