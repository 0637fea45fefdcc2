"""`python -m benchmarks.quality embed|measure|report`; see `--help`."""

import argparse
from pathlib import Path

from apood.support.processes import Failure, Share, in_processes
from benchmarks.quality.measure import embed, find_scores, find_stores, measure, read_measured
from benchmarks.quality.report import make_page, plot_aux_curve
from benchmarks.quality.tasks import BACKBONES, TASKS

_NAMES = [task.name for task in TASKS]
_CURVES = ("minilm-xsum-128", "smollm2-xsum-128")
_PAGE = Path(__file__).parents[1] / "QUALITY.md"
_FIGURE = _PAGE.with_name("aux-curve.png")
_COMMAND = "python -m benchmarks.quality {embed,measure,report}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    embedding = steps.add_parser("embed", help="texts to token stores")
    embedding.add_argument("backbone", choices=BACKBONES)
    embedding.add_argument("model", type=Path, help="folder of the model")
    embedding.add_argument("--data", type=Path, required=True, help="folder of the texts, see tasks.py")
    measuring = steps.add_parser("measure", help="fit and score all methods on all tasks that were embedded")
    measuring.add_argument("--jobs", type=int, default=1, help="tasks at a time")
    measuring.add_argument("--threads", type=int, default=2, help="CPU threads of each")
    measuring.add_argument("--curves", action="store_true", help=f"also over growing numbers of AUX, on {_CURVES}")
    reporting = steps.add_parser("report", help=f"write {_PAGE.name}")
    for step in (embedding, measuring, reporting):
        step.add_argument("--work", type=Path, required=True, help="folder for stores and scores")
        step.add_argument("--task", action="append", choices=_NAMES, help="only these; repeat it")
    given = parser.parse_args()
    tasks = [task for task in TASKS if given.task is None or task.name in given.task]
    work: Path = given.work
    if given.step == "embed":
        embed([task for task in tasks if task.backbone == given.backbone], given.model, given.data, work)
    elif given.step == "measure":
        waiting = [
            (task, work, given.curves and task.name in _CURVES)
            for task in sorted(tasks, key=lambda task: -task.max_tokens)  # the longest first, so that all end together
            if find_stores(task, work).exists() and not find_scores(task, work).exists()
        ]
        for index, outcome in in_processes(measure, waiting, Share(given.jobs, given.threads)):
            if isinstance(outcome, Failure):
                print(f"{waiting[index][0].name} failed: {outcome.reason}", flush=True)
    else:
        measured = [found for task in tasks if (found := read_measured(task, work)) is not None]
        _PAGE.write_text(make_page(measured, _COMMAND), encoding="utf-8")
        plot_aux_curve(measured, _FIGURE)
        print(f"Written to {_PAGE}.")


if __name__ == "__main__":
    main()
