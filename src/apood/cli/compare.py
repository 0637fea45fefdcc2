"""`apood compare`."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.arguments import parse_named_stores, warn_if_unfinished
from apood.cli.output import advise_on_interrupt, print_json
from apood.support.errors import InputError, StoreError
from apood.support.files import refuse_unwritable

if TYPE_CHECKING:
    from apood.evaluation.comparison_plan import ComparisonPlan

__all__ = ["compare"]


def compare(
    plan_file: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="TOML file that says all that the options would.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for results.json, table.md, table.tex and table.html.")
    ] = Path("comparison"),
    id_train: Annotated[
        Path | None, typer.Option(metavar="STORE", help="In-distribution sequences to learn from.")
    ] = None,
    id_test: Annotated[Path | None, typer.Option(metavar="STORE", help="In-distribution sequences to test on.")] = None,
    id_store: Annotated[
        Path | None,
        typer.Option("--id", metavar="STORE", help="In-distribution sequences for both, parted anew in every split."),
    ] = None,
    id_validation: Annotated[
        Path | None,
        typer.Option(
            metavar="STORE", help="In-distribution sequences for a threshold, to see how many of the test pass it."
        ),
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option("--ood", metavar="NAME=STORE", help="A name and its token store; may be repeated."),
    ] = None,
    aux: Annotated[
        Path | None, typer.Option(metavar="STORE", help="Auxiliary outliers, for the methods that learn from them.")
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="NAME", help="One of those that `apood methods` lists; may be repeated."),
    ] = None,
    splits: Annotated[
        int | None, typer.Option(metavar="N", help="How many times to repeat everything.", show_default="5")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            "--share", metavar="SHARE", help="How much of every store a split draws at random.", show_default="0.8"
        ),
    ] = None,
    test_share: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="How much of the store of --id is tested on.", show_default="0.2"),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of the first split.", show_default="0")] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where fits and scores are kept.", show_default="cache in --out"),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="How many fits at once.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the content of results.json.")] = False,
) -> None:
    """Fits and evaluates many methods on your stores.

    Everything is kept: the same command goes on after an interruption, and after a change of the plan only what is
    new is done. Without --method all methods are compared that can work with the stores. A method that fails has no
    figures, and a note says why.
    """
    given: dict[str, Any] = {
        "id_train": id_train, "id_test": id_test, "id": id_store, "id_validation": id_validation, "ood": ood,
        "aux": aux, "methods": methods, "splits": splits, "share": share, "test_share": test_share, "seed": seed,
    }  # fmt: skip
    given = {key: value for key, value in given.items() if value not in (None, [])}
    if plan_file is not None and given:
        raise InputError(f"A plan says it all: leave out {_option(next(iter(given)))}, or write it into {plan_file}.")
    if plan_file is None and not given:
        raise InputError("There is nothing to compare: give a plan file, or --id-train, --id-test and --ood.")
    kept = out / "cache" if cache is None else cache
    for place in (out, kept):
        refuse_unwritable(place / "file")

    from apood.report.html import refuse_without_jinja
    from apood.tokens.store import StoreIndex

    refuse_without_jinja()
    plan = _read_options(given) if plan_file is None else _read_file(plan_file)
    for folder in plan.stores.values():
        with suppress(StoreError):  # told below, with what the store is for
            warn_if_unfinished(folder, StoreIndex.read(folder))

    from apood.evaluation.comparison import compare as carry_out
    from apood.report.files import write_comparison

    with advise_on_interrupt(lambda: f"what is done lies in {kept}; run the same command again to go on."):
        comparison = carry_out(plan, cache=kept, jobs=jobs)
    written = write_comparison(comparison, out)
    if as_json:
        print_json(comparison.to_json())
        return
    from rich.console import Console

    from apood.report.comparison import grid_of_comparison
    from apood.report.tables import TerminalTable

    Console().print(TerminalTable(grid_of_comparison(comparison)))
    typer.echo(f"\nWritten to {out}: {', '.join(path.name for path in written)}.")


def _read_file(path: Path) -> "ComparisonPlan":
    from apood.evaluation.comparison_plan import read_plan

    return read_plan(path)


def _read_options(given: dict[str, Any]) -> "ComparisonPlan":
    from apood.evaluation.comparison_plan import ComparisonPlan
    from apood.evaluation.entry import Entry

    methods = tuple(Entry(name) for name in given.pop("methods", ()))
    return ComparisonPlan(ood=parse_named_stores(given.pop("ood", ())), methods=methods, **given)


def _option(key: str) -> str:
    return {"methods": "--method"}.get(key, f"--{key.replace('_', '-')}")
