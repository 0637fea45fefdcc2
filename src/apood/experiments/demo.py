"""`apood demo`: the main job on data that every installation has, from texts to decisions, without a network.

Python's own documentation is in-distribution. Several methods learn it and meet texts of other kinds, some of them
documentation with a single foreign sentence. The default detector is calibrated, explained and saved.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from apood.detectors.contract.artefact import refuse_foreign
from apood.detectors.contract.base import Scores
from apood.detectors.fusion import Fusion
from apood.encoders.text.encoder import TextEncoder
from apood.evaluation.entry import Entry
from apood.evaluation.result import MEAN, ResultRow, Run
from apood.evaluation.split import Split
from apood.evaluation.study import fit_entry, run_study
from apood.experiments.demo_sources import find_minilm
from apood.experiments.demo_texts import DemoTexts, make_demo_texts
from apood.explain.explaining import explain_texts
from apood.explain.terminal import mark_text
from apood.report.grid import make_grid
from apood.report.plots import plot_score_distributions
from apood.report.tables import TerminalTable
from apood.support.files import refuse_unwritable, write_json
from apood.support.processes import Failure
from apood.support.progress import track

__all__ = ["run_demo"]

_SEED = 0
_MAX_TOKENS = 96
_SHOWN = 3
_DEFAULT = Entry("fusion", name="default")
_SETS = (
    "Shuffled words are documentation with its words in random order; spliced texts are documentation with one foreign "
    "sentence. All sets have texts of the same lengths, so that a method that sees the length only finds nothing."
)
_ENTRIES = (
    _DEFAULT,
    Entry("ap-ood", name="AP-OOD"),
    Entry("mahalanobis", name="Mahalanobis"),
    Entry("mahalanobis", {"normalize": "pooled"}, "Mahalanobis, normalised"),
    Entry("knn", name="KNN"),
    Entry("length", name="length only"),
)


def run_demo(out: Path, *, quick: bool, console: Console) -> list[ResultRow]:
    """Fit, compare, explain and save; write the results to `out` and return their rows."""
    started = time.monotonic()
    refuse_unwritable(out / "detector")
    refuse_foreign(out / "detector")
    model = find_minilm()
    console.print("[bold]1.[/] Reading texts: the documentation of Python is in-distribution, all else is not.")
    texts = make_demo_texts(_SEED, quick)
    console.print(f"[bold]2.[/] Embedding them with MiniLM ({model}).", soft_wrap=True)
    encoder = TextEncoder(str(model), max_tokens=_MAX_TOKENS, on_long="beginning")
    parts = [texts.train, texts.calibration, texts.test, *texts.ood.values()]
    train, calibration, test, *others = (encoder.encode(part) for part in track(parts, "embed", len(parts)))
    split = Split(train, test, dict(zip(texts.ood, others, strict=True)), seed=_SEED)
    tested = f"{len(test):,} ID and {sum(map(len, others)):,} OOD texts to test on"
    console.print(f"   {len(train):,} texts to learn from, {tested}.")
    console.print(f"   {_SETS}", soft_wrap=True)
    console.print("[bold]3.[/] Fitting and comparing the methods.")

    def report(entry: Entry, outcome: Run | Failure) -> None:
        found = outcome.reason if isinstance(outcome, Failure) else f"{outcome.fit_seconds:.0f} s"
        console.print(f"   {entry.label}: {escape(found)}")

    with tempfile.TemporaryDirectory(prefix="apood-demo-") as cache:
        results = run_study([(entry, [split]) for entry in _ENTRIES], cache=Path(cache), on_run=report)
        default = fit_entry(_DEFAULT, split, Path(cache)).fit_or_load().calibrate(calibration)
    assert isinstance(default, Fusion)
    rows = [row for result in results for run in result.runs for row in run.rows]
    console.print(
        TerminalTable(make_grid(rows), title="AUROC (higher is better) above FPR95 (lower is better), percent")
    )
    if (ahead := _find_ahead(rows)) is not None:
        console.print(f"{ahead} is ahead of the default on these texts. Over many tasks, it is the other way round.\n")
    console.print("[bold]4.[/] Which words give a text with one foreign sentence away; the sentence is below it.")
    of_default = results[0].runs[0]
    _show_spliced(default, texts, encoder, of_default.ood_scores, console)
    default.save(out / "detector")
    write_json(out / "results.json", rows)
    plot_score_distributions(
        out / "scores.png",
        {"ID": of_default.test_scores, **of_default.ood_scores},
        threshold=default.threshold_,
        title="Scores of the default detector",
    )
    examples = [texts.test[0], *(part[0] for part in texts.ood.values())]
    (out / "texts.txt").write_text("\n".join(examples) + "\n", encoding="utf-8")
    console.print(
        f"Done in {time.monotonic() - started:.0f} s. Written to {escape(str(out))}: results.json, scores.png, "
        "texts.txt and the calibrated detector. Use it next:",
        soft_wrap=True,
    )
    program = "apood" if shutil.which("apood") else str(Path(sys.executable).with_name("apood"))
    command = f"{program} score {out / 'detector'} {out / 'texts.txt'}"
    console.print(f"  {escape(command)}", style="bold", soft_wrap=True, highlight=False)
    return rows


def _find_ahead(rows: list[ResultRow]) -> str | None:
    """Return the method with the highest mean AUROC; None if it is the default."""
    best = max((row for row in rows if row["dataset"] == MEAN), key=lambda row: row["auroc"])["method"]
    return None if best == _DEFAULT.label else best


def _show_spliced(
    detector: Fusion,
    texts: DemoTexts,
    encoder: TextEncoder,
    scores: Mapping[str, Scores],
    console: Console,
) -> None:
    """Print some refused texts with a foreign sentence, with the words marked that made them suspicious."""
    for name, index in _pick_refused({name: scores[name] for name in texts.spliced}, detector.threshold_):
        foreign = texts.spliced[name][index]
        explanation = explain_texts(detector, encoder, [foreign.text])[0]
        console.print(Padding(mark_text(explanation), (1, 0, 0, 3)))
        console.print(f"   [dim]foreign ({name}): {escape(foreign.text[foreign.start : foreign.end])}[/]")
    console.print()


def _pick_refused(scores: Mapping[str, Scores], threshold: float) -> list[tuple[str, int]]:
    """Return the set and index of refused texts at the quartiles of the scores: neither easy nor hard ones."""
    refused = sorted(
        (float(own[index]), name, int(index))
        for name, own in scores.items()
        for index in np.flatnonzero(own < threshold)
    )
    shown = min(_SHOWN, len(refused))
    return [refused[(place + 1) * len(refused) // (shown + 1)][1:] for place in range(shown)]
