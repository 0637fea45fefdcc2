"""`apood bench text`: the benchmark for the detection of OOD texts from tokens."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from apood.cli.next_steps import suggest_report
from apood.cli.options import Methods
from apood.cli.output import PlainGroup, advise_on_interrupt, echo, print_facts, print_json
from apood.support.errors import InputError

__all__ = ["text"]

text = typer.Typer(cls=PlainGroup)

_Declaration = Annotated[Path, typer.Argument(metavar="DECLARATION", help="The TOML file with the corpora.")]
_Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of the files that DECLARATION names.", show_default="that of DECLARATION"),
]
_Models = Annotated[
    list[str], typer.Option("--model", metavar="NAME=FOLDER", help="A model folder or hub id; may be repeated.")
]
_Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder for stores, fits and results; runs may share it.")]


class ModeName(StrEnum):
    """Whose states are looked at."""

    input = "input"
    output = "output"


@text.callback()
def _text() -> None:
    """Compare methods on corpora of texts, in several views of the tokens."""


@text.command()
def run(
    declaration: _Declaration,
    models: _Models,
    data: _Data = None,
    modes: Annotated[
        list[ModeName] | None,
        typer.Option(
            "--mode", metavar="MODE", help="input or output; may be repeated.", show_default=ModeName.input.value
        ),
    ] = None,
    layers: Annotated[
        list[str] | None,
        typer.Option(
            "--layers",
            metavar="LAYERS",
            help="auto, mix, last, or others as in `apood embed`; may be repeated. The default method has the first.",
            show_default="auto, mix and last",
        ),
    ] = None,
    corpora: Annotated[
        list[str] | None,
        typer.Option("--corpus", metavar="NAME", help="Only this corpus; may be repeated.", show_default="all"),
    ] = None,
    methods: Methods = None,
    no_aux: Annotated[bool, typer.Option("--no-aux", help="Leave out the methods that learn from AUX texts.")] = False,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of seeds.")] = 3,
    out: _Out = Path("text-bench"),
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Number of tasks at once.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be embedded and fitted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan, or the names of the files.")] = False,
) -> None:
    """Embed the corpora with each model, fit all methods, and write results and a report.

    Everything is kept: the same command continues after an interruption, and a further model, corpus or method costs
    only what is new.
    """
    from apood.experiments.text.runner import TextBenchOptions, prepare
    from apood.experiments.text.tasks import AUTO, parse_view
    from apood.experiments.text.texts import OOD, TEST, TRAIN, VALIDATION

    prepared = prepare(
        TextBenchOptions(
            declaration,
            models,
            data=data,
            modes=tuple(mode.value for mode in modes or (ModeName.input,)),
            views=tuple(map(parse_view, layers or (AUTO, "mix", "last"))),
            corpora=corpora or (),
            methods=methods or (),
            with_aux=not no_aux,
            seeds=seeds,
            out=out,
            jobs=jobs,
        )
    )
    if dry_run and as_json:
        print_json(prepared.facts)
    elif not as_json:
        print_facts(prepared.facts)
    if dry_run:
        return
    with advise_on_interrupt(lambda: f"what is done is in {out}; run the same command again to continue."):
        written, failures = prepared.run(None if as_json else echo)
    if as_json:
        print_json({"written": [str(path) for path in written], "failures": failures})
        return
    for failure in failures:
        echo(f"Failed: {failure}", err=True)
    echo(f"\nWritten to {out}: {len(written)} files, of which {written[-1].name} is the last.")
    for task, stores in prepared.list_stores()[:1]:
        ood = {role.removeprefix(OOD): folder for role, folder in stores.items() if role.startswith(OOD)}
        suggest_report(
            f"the default on {task}", [], train=stores[TRAIN], held_out=stores[VALIDATION], test=stores[TEST], ood=ood
        )


@text.command()
def report(
    results: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders with results, also those of others.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The Markdown file to write.")] = Path("report.md"),
) -> None:
    """Write the tables of all results in one or more folders."""
    from apood.experiments.text.report import write_report
    from apood.experiments.text.results import list_results

    written = write_report(list_results(results), out)
    echo(f"Written to {', '.join(map(str, written))}.")


@text.command()
def check(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="A results file, as JSON.")],
    declaration: Annotated[Path, typer.Option("--declaration", metavar="FILE", help="The TOML file with the corpora.")],
    models: _Models,
    data: _Data = None,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="POINTS",
            help="The difference that is allowed, in percentage points; FPR95 and the ends of intervals may differ by "
            "twice as much.",
        ),
    ] = 0.5,
    out: _Out = Path("text-bench"),
) -> None:
    """Fit and score the method of a results file again, and compare all that the file states."""
    from apood.experiments.text.checking import check_result
    from apood.experiments.text.runner import TextBenchOptions

    options = TextBenchOptions(declaration, models, data=data, out=out)
    differences = check_result(result, options, tolerance)
    if differences:
        raise InputError(f"{result} differs from what was measured now: {' '.join(differences)}")
    within = f"{tolerance:g} percentage points (FPR95 and intervals: {2 * tolerance:g})"
    echo(f"{result}: all figures are the same within {within}.")
