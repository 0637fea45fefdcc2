"""`apood compare`."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.arguments import format_parameter, parse_named_stores, warn_if_unfinished
from apood.cli.costs import DryRun, make_announcer
from apood.cli.next_steps import suggest_report
from apood.cli.options import AsJson, EveryCache, Methods, OodSets, TextField, TextModel
from apood.cli.output import advise_on_interrupt, echo, print_json, print_table
from apood.cli.stores import STDIN, StoreFinder
from apood.support.errors import DataWarning, InputError, StoreError
from apood.support.files import refuse_unwritable, reserve_path

if TYPE_CHECKING:
    from apood.evaluation.comparison import Comparison, ComparisonPlan
    from apood.evaluation.entry import Entry

__all__ = ["compare"]


def compare(
    plan_file: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="TOML file with the plan, instead of the options.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write results.json and the tables to.")] = Path(
        "comparison"
    ),
    id_train: Annotated[
        str | None, typer.Option(metavar="STORE_OR_TEXTS", help="In-distribution sequences to fit on.")
    ] = None,
    id_test: Annotated[
        str | None, typer.Option(metavar="STORE_OR_TEXTS", help="In-distribution sequences to test on.")
    ] = None,
    id_store: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="STORE_OR_TEXTS",
            help="In-distribution sequences to fit and to test on, divided at random in every split.",
        ),
    ] = None,
    id_validation: Annotated[
        str | None,
        typer.Option(
            metavar="STORE_OR_TEXTS",
            help="In-distribution sequences for a threshold; the table then shows how many test sequences it accepts.",
        ),
    ] = None,
    ood: OodSets = None,
    aux: Annotated[
        str | None,
        typer.Option(metavar="STORE_OR_TEXTS", help="Auxiliary outliers, for methods that learn from them."),
    ] = None,
    methods: Methods = None,
    splits: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of repetitions, each on a random draw of the data; 5 by default."),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            "--share", metavar="SHARE", help="Share of every store that a split draws at random; 0.8 by default."
        ),
    ] = None,
    test_share: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Share of the store of --id to test on; 0.2 by default."),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of the first split; 0 by default.")] = None,
    model: TextModel = None,
    field: TextField = None,
    cache: EveryCache = None,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Number of processes that fit at the same time.")] = 1,
    no_costs: Annotated[
        bool, typer.Option("--no-costs", help="Leave seconds and sizes out of the tables, for a narrow page.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Fit and evaluate many methods on your token stores, or on texts, which are embedded first.

    Without --method, all methods that can work with the stores are compared. A method that fails has no figures, and a
    note says why.

    Fits and scores are kept: after an interruption, the same command continues, and after a change of the plan only
    what is new is computed.
    """
    given: dict[str, Any] = {
        "id_train": id_train, "id_test": id_test, "id": id_store, "id_validation": id_validation, "ood": ood,
        "aux": aux, "methods": methods, "splits": splits, "share": share, "test_share": test_share, "seed": seed,
    }  # fmt: skip
    given = {key: value for key, value in given.items() if value not in (None, [])}
    if plan_file is not None and given:
        raise InputError(
            f"A plan replaces the options: leave out {_name_option(next(iter(given)))}, or write it into {plan_file}."
        )
    if test_share is not None and id_store is None:
        raise InputError(
            "--test-share is for --id, which a split divides: leave it out beside --id-train and --id-test."
        )
    if plan_file is None and not given:
        raise InputError("There is nothing to compare: give a plan file, or --id-train, --id-test and --ood.")
    kept = out / "cache" if cache is None else cache
    for place in (out, kept):
        refuse_unwritable(place / "file")

    from apood.evaluation.comparison import compare as run_comparison
    from apood.evaluation.comparison import read_plan
    from apood.report.comparison import make_comparison_grid, write_comparison
    from apood.report.tables import TerminalTable, refuse_without_jinja
    from apood.tokens.store import StoreIndex

    refuse_without_jinja()
    tokens = None if cache is None else cache / "tokens"
    stores = StoreFinder.of_model(model, tokens, field)
    find = stores.find_or_sample if dry_run else stores.find
    plan = _read_options(given, find) if plan_file is None else read_plan(plan_file, find)
    stores.refuse_unused_options()
    for folder in plan.stores.values():
        with suppress(StoreError):  # reported below, together with the role of the store
            warn_if_unfinished(folder, StoreIndex.read(folder))

    with (
        advise_on_interrupt(lambda: f"finished fits are kept in {kept}; run the same command again to continue."),
        reserve_path(out),
    ):
        comparison = run_comparison(plan, cache=kept, jobs=jobs, announce=make_announcer(dry_run, as_json, stores))
        written = write_comparison(comparison, out, costs=not no_costs)
    if as_json:
        print_json(comparison.to_json())
        return
    print_table(TerminalTable(make_comparison_grid(comparison, costs=not no_costs)), highlight=True)
    echo(f"\nWritten to {out}: {', '.join(path.name for path in written)}.")
    _suggest_report(comparison, model, field, tokens)


def _suggest_report(comparison: "Comparison", model: str | None, field: str | None, tokens: Path | None) -> None:
    """Print how to write a report about the method that is best on average; `tokens` keeps embedded texts."""
    from apood.evaluation.result import MEAN

    whole = [result for result in comparison.results if not result.failures]
    if not whole:
        return
    best, plan = max(whole, key=lambda result: result.summarize(MEAN, "auroc").mean).entry, comparison.plan
    given = {key: plan.names[key] if plan.names[key] != STDIN else str(folder) for key, folder in plan.stores.items()}
    method = best.method if isinstance(best.method, str) else best.kind.name
    options = ["--method", method]
    options += [
        word for name, value in best.parameters.items() for word in ("--set", f"{name}={format_parameter(value)}")
    ]
    suggest_report(
        f"{best.label}, the best on average",
        options,
        train=given["id" if "id" in given else "id_train"],
        held_out=given.get("id_validation"),
        test=given.get("id_test"),
        ood={name: given[f"ood.{name}"] for name in plan.ood},
        aux=given["aux"] if best.uses_aux else None,
        own_class=method if ":" in method else None,
        model=model,
        field=field,
        cache=tokens,
    )


def _read_options(given: dict[str, Any], find: Callable[[str], Any]) -> "ComparisonPlan":
    from apood.evaluation.comparison import ComparisonPlan, find_sets

    methods = _list_entries(given.pop("methods", ()), with_aux="aux" in given)
    ood = parse_named_stores(given.pop("ood", ()))
    return find_sets(ComparisonPlan(ood=ood, methods=methods, **given), find)


def _list_entries(names: Sequence[str], *, with_aux: bool) -> "list[Entry]":
    """Return the entries of the named methods; with AUX sequences, those that can learn from them do so as well."""
    from apood.evaluation.entry import Entry

    alone = [Entry(name) for name in names]
    learning = [replace(entry, aux="all") for entry in alone if with_aux and entry.make_detector().aux == "optional"]
    if with_aux and alone and not (learning or any(entry.uses_aux for entry in alone)):
        verb = "does" if len(names) == 1 else "do"
        notice = f"--aux is for methods that learn from outliers, and {' and '.join(names)} {verb} not."
        warnings.warn(notice, DataWarning, stacklevel=2)
    return alone + learning


def _name_option(key: str) -> str:
    return {"methods": "--method"}.get(key, f"--{key.replace('_', '-')}")
