"""`apood select`."""

import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.arguments import format_parameter, open_store, parse_settings, refuse_occupied
from apood.cli.costs import DryRun, make_announcer
from apood.cli.options import AsJson, EveryCache, Force, NoVerify, TextField, TextModel
from apood.cli.output import advise_on_interrupt, echo, print_json, print_table
from apood.cli.stores import StoreFinder, are_texts
from apood.support.errors import FitWarning, InputError
from apood.support.files import read_json, refuse_unwritable, reserve_path, write_json

if TYPE_CHECKING:
    from apood.detectors.contract.base import Detector
    from apood.evaluation.selection import Point, Selection
    from apood.tokens.source import TokenSource

__all__ = ["select"]

_VALIDATION, _AUX = 0.2, 0.25  # shares to judge by


def select(
    store: Annotated[
        str, typer.Argument(metavar="STORE_OR_TEXTS", help="In-distribution sequences, or texts as for `apood embed`.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder to write results.json, heatmap.png and the detector to.")
    ],
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Method whose settings are searched, such as ap-ood, or module:Class of your own. It must be given.",
        ),
    ] = None,
    aux: Annotated[
        str | None,
        typer.Option(metavar="STORE_OR_TEXTS", help="Auxiliary outliers to judge by."),
    ] = None,
    supervised: Annotated[
        bool, typer.Option("--supervised", help="Also learn from the outliers, except for a share to judge by.")
    ] = False,
    validation: Annotated[
        str | None,
        typer.Option(metavar="STORE_OR_TEXTS", help="In-distribution sequences to judge by."),
    ] = None,
    validation_share: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of the in-distribution sequences to judge by, without --validation.",
            show_default=str(_VALIDATION),
        ),
    ] = None,
    aux_share: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Share of the outliers to judge by, with --supervised.", show_default=str(_AUX)
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a parameter of all fits, as in `--set steps=300`; may be repeated."
        ),
    ] = None,
    axes: Annotated[
        list[str] | None,
        typer.Option(
            "--grid", metavar="KEY=V1,V2,…", help="Values to try, instead of the method's own grid; may be repeated."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of seeds to average over.")] = 1,
    model: TextModel = None,
    field: TextField = None,
    cache: EveryCache = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of processes.", show_default="all cores, or 1 with a GPU"),
    ] = None,
    dry_run: DryRun = False,
    force: Force = False,
    no_verify: NoVerify = False,
    as_json: AsJson = False,
) -> None:
    """Search the settings of a method on token stores, or on texts, which are embedded first; save the best detector.

    The best settings have the highest AUROC of held-out in-distribution sequences against auxiliary outliers (--aux).

    Without outliers, nothing tells which settings find them best, not even the held-out loss. The table then shows only
    which settings failed badly ("disaster"), and the settings as given are kept unless they are among these.

    Every fit is kept: after an interruption, the same command does only what is missing.
    """
    if method is None:
        raise InputError(
            "Name the method to search with --method, such as ap-ood or knn; `apood methods` lists them. "
            "The default method of `apood fit` has no settings to search."
        )
    from apood.data.inputs import refuse_repeated_stdin
    from apood.detectors.contract.registry import detector_class
    from apood.evaluation.selection import check_search
    from apood.evaluation.selection import select as search
    from apood.report.canvas import refuse_without_matplotlib

    chosen = detector_class(method)
    given = parse_settings(chosen, settings or [])
    detector = chosen(**given)
    detector.check_parameters()
    grid = _parse_grid(chosen, axes) if axes else None
    _refuse_both(given, grid or {})
    learns = supervised or detector.aux == "required"
    if validation is not None and validation_share is not None:
        raise InputError("--validation-share is for a search without --validation: leave one of them out.")
    if not learns and aux_share is not None:
        raise InputError(
            "--aux-share is for fits that also learn from the outliers: add --supervised, or leave it out."
        )
    refuse_repeated_stdin([store, validation, aux])
    validation_share = _VALIDATION if validation_share is None else validation_share
    aux_share = _AUX if aux_share is None else aux_share
    refuse_without_matplotlib()  # now rather than after hours
    target, kept, saving = out / "detector", cache or out / "cache", out / "saving.json"
    # What was searched: whoever repeats a command that was killed after saving wants the same detector.
    searched_with = (store, aux, validation, method, learns, settings, axes, seeds, validation_share, aux_share)
    search_of = [str(part) for part in (*searched_with, model, field)]
    with (
        advise_on_interrupt(lambda: f"finished fits are kept in {kept}; run the same command again to continue."),
        reserve_path(out),
    ):
        refuse_occupied(target, force or _read_saving(saving) == search_of)
        for place in (out, kept):
            refuse_unwritable(place / "file")
        stores = StoreFinder.of_model(model, None if cache is None else cache / "tokens", field)

        def open_set(given_set: str) -> "TokenSource":
            found = stores.find_or_sample(given_set) if dry_run else stores.find(given_set)
            return open_store(found, detector, verify=not no_verify) if isinstance(found, Path) else found

        given_sets = [one for one in (store, validation, aux) if one is not None]
        opened = {one: open_set(one) for one in given_sets if not are_texts(one)}
        check_search(
            detector,
            supervised=supervised,
            with_aux=aux is not None,
            grid=grid,
            seeds=seeds,
            validation_share=validation_share,
            aux_share=aux_share,
        )
        opened |= {one: open_set(one) for one in given_sets if one not in opened}
        train = opened[store]
        stores.refuse_unused_options()
        if grid is None:
            space = detector.hyperparameter_space(train.dim, supervised=learns)
            _refuse_both(given, [name for searched in space for name in searched])
        found = search(
            detector,
            train,
            None if validation is None else opened[validation],
            None if aux is None else opened[aux],
            supervised=supervised,
            grid=grid,
            seeds=seeds,
            validation_share=validation_share,
            aux_share=aux_share,
            cache=kept,
            jobs=jobs or "auto",
            announce=make_announcer(dry_run, as_json, stores),
        )
        sets = {"id": store, "id_validation": validation, "aux": aux}
        results = found.to_json() | {"stores": {key: given_set for key, given_set in sets.items() if given_set}}
        write_json(out / "results.json", results)
        _draw(found, detector, out / "heatmap.png")
        write_json(saving, search_of)
        if found.detector is not None:
            found.detector.save(target)
    shown = found.best or next(point for point in found.points if point.given)
    for warning in shown.warnings:
        warnings.warn(warning, FitWarning, stacklevel=1)
    if as_json:
        print_json(results)
    else:
        _show(found, detector, target)
    saving.unlink(missing_ok=True)


def _read_saving(path: Path) -> Any:
    """Return the description of a search that was interrupted while it saved its results; None if there is none."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None


def _refuse_both(given: Collection[str], searched: Collection[str]) -> None:
    if both := sorted({*given} & {*searched}):
        raise InputError(
            f"{both[0]} is both set and searched: leave it out of --set, or name what to search with --grid."
        )


def _parse_grid(method: "type[Detector]", axes: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each parameter from texts such as `k=1,5`."""
    grid: dict[str, list[Any]] = {}
    for axis in axes:
        name, separator, texts = axis.partition("=")
        if not separator or not texts:
            raise InputError(f"--grid takes key=value,value,…, got {axis!r}.")
        if name in grid:
            raise InputError(f"The parameter {name!r} is in the grid twice: give all its values at once.")
        grid[name] = [parse_settings(method, [f"{name}={text}"])[name] for text in texts.split(",")]
    return grid


def _list_searched(found: "Selection") -> list[str]:
    """Return the parameters that differ between settings; some settings may lack some of them."""
    return list(dict.fromkeys(name for point in found.points for name in point.settings))


def _draw(found: "Selection", detector: "Detector", path: Path) -> None:
    from apood.report.heatmap import HeatCell, plot_heatmap

    with_outliers, names, own = found.with_outliers, _list_searched(found), detector.get_params(deep=False)

    def complete(point: "Point") -> dict[str, Any]:
        return {name: (own | point.settings)[name] for name in names}

    cells = [HeatCell(complete(point), _get_criterion(point)) for point in found.points if point.settings]
    plot_heatmap(
        path,
        cells,
        title=f"{found.method}: " + ("AUROC of ID against AUX" if with_outliers else "disasters, not a ranking"),
        label="AUROC in percent" if with_outliers else "held-out / training distance",
        best=None if found.best is None else complete(found.best),
        higher_is_better=with_outliers,
    )


def _get_criterion(point: "Point") -> float | None:
    if point.auroc is not None:
        return 100 * point.auroc.value
    return None if point.held_out is None else point.held_out.ratio


def _show(found: "Selection", detector: "Detector", target: Path) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    names = _list_searched(found)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for name in ("AUROC",) if found.with_outliers else ("held-out\nd²", "training\nd²", "ratio", "held-out\nloss"):
        table.add_column(name, justify="right")
    table.add_column("fit\nseconds", justify="right")
    table.add_column("")
    for point in found.points:
        parameters = detector.get_params(deep=False) | point.settings
        row = [
            *(_format_value(parameters[name]) for name in names),
            *_format_figures(point, found),
            f"{point.fit_seconds:.1f}",
        ]
        style = "bold" if point is found.best else "dim" if point.failure or point.disaster else ""
        mark = "▸" if point is found.best else ""
        table.add_row(mark, *row, Text(_describe(point)), style=style)
    print_table(table)
    echo()
    for reason, count in Counter(point.failure for point in found.points if point.failure).items():
        echo(f"{count} failed: {reason}")
    echo(found.promise)
    if found.best is None:
        echo(
            "All settings that could be fitted are disasters, so no detector was saved: "
            "use more sequences, or another method."
        )
        return
    settings = " ".join(f"{name}={_format_value(value)}" for name, value in found.best.settings.items())
    echo(
        f"Saved the detector with {settings or 'the settings as given'} to {target}; "
        f"set its threshold with `apood calibrate {target} STORE_OR_TEXTS`."
    )


def _format_value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else format_parameter(value)


def _format_figures(point: "Point", found: "Selection") -> list[str]:
    if point.auroc is not None:
        value, low, high = (100 * end for end in point.auroc)
        return [f"{value:.1f} ±{(high - low) / 2:.1f}"]
    if point.held_out is not None:
        loss, held_out, training = point.held_out
        return [f"{number:.3g}" for number in (held_out, training, point.held_out.ratio)] + [f"{loss:.1f}"]
    return ["–"] * (1 if found.with_outliers else 4)


def _describe(point: "Point") -> str:
    notes = [
        "as given" if point.given else "",
        "disaster" if point.disaster else "",
        f"{len(point.warnings)} warning{'s'[: len(point.warnings) > 1]}" if point.warnings else "",
        "failed" if point.failure else "",
    ]
    return ", ".join(filter(None, notes))
