"""`apood fit`."""

from typing import Annotated, Any

import typer

from apood.cli.arguments import is_default, make_detector, open_store, refuse_occupied
from apood.cli.costs import FAST_ADVICE, announce
from apood.cli.engine import (
    Address,
    DryRunRay,
    Engine,
    OnRay,
    Workers,
    fit_on_ray,
    refuse_other_options,
)
from apood.cli.options import AsJson, CacheFolder, Fast, Force, Method, NoVerify, Settings, TextField, TextModel
from apood.cli.output import advise_on_interrupt, echo, print_json
from apood.cli.stores import StoreFinder, are_texts
from apood.support.checks import format_count
from apood.support.cloud import parse_place
from apood.support.cloud_folders import find_work_folder
from apood.support.files import reserve_path

__all__ = ["fit"]


def fit(
    store: Annotated[
        str,
        typer.Argument(
            metavar="STORE_OR_TEXTS", help="Token store of in-distribution sequences, or texts as for `apood embed`."
        ),
    ],
    out: Annotated[str, typer.Option(metavar="DETECTOR", help="Folder to write the detector to.")],
    method: Method = "default",
    aux: Annotated[
        str | None,
        typer.Option(
            metavar="STORE_OR_TEXTS", help="Auxiliary outliers, in the same forms, for methods that learn from them."
        ),
    ] = None,
    model: TextModel = None,
    field: TextField = None,
    cache: CacheFolder = None,
    fast: Fast = False,
    settings: Settings = None,
    checkpoint_seconds: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Seconds between two checkpoints; an interruption loses at most this much work.",
        ),
    ] = 5.0,
    force: Force = False,
    no_verify: NoVerify = False,
    engine: Engine = "plain",
    sample: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of texts to train on, drawn at random; for --engine ray."),
    ] = None,
    address: Address = None,
    workers: Workers = None,
    dry_run: DryRunRay = False,
    as_json: AsJson = False,
) -> None:
    """Fit a detector on in-distribution sequences, or on texts, which are embedded first.

    The default method combines AP-OOD with nearest neighbours. It needs no outliers and no tuning.

    A long fit writes checkpoints to DETECTOR.checkpoint. After an interruption, the same command continues from there.

    With --engine ray, the detector is trained on a sample of the texts. Workers of a cluster then compute statistics of
    all texts, which it also learns from. Held-out texts set the threshold, so no `apood calibrate` is needed.
    """
    from apood.data.inputs import refuse_repeated_stdin
    from apood.evaluation.cost import estimate_cost
    from apood.fitting.optimise import Checkpoint
    from apood.pipeline.checks import refuse_same_data
    from apood.pipeline.facts import Facts

    on_cluster = {"sample": sample, "address": address, "workers": workers, "dry_run": dry_run}
    seconds = None if checkpoint_seconds == Checkpoint.every_seconds else checkpoint_seconds
    only_plain = {"aux": aux, "cache": cache, "checkpoint_seconds": seconds, "no_verify": no_verify}
    refuse_other_options(engine, plain=only_plain, ray=on_cluster)
    detector = make_detector(method, settings or [], with_aux=aux is not None, fast=fast, on_ray=engine == "ray")
    refuse_repeated_stdin([store, aux])
    place = parse_place(out)
    if engine == "ray":
        if not dry_run:
            refuse_occupied(place, force)
        fit_on_ray(detector, store, out, model, field, sample, OnRay(address, workers, dry_run, as_json))
        return
    work = find_work_folder(place)
    checkpoint = Checkpoint(work.parent / f"{work.name}.checkpoint", checkpoint_seconds)

    def advise() -> str:
        if not checkpoint.exists():
            kept = "embedded texts are kept" if are_texts(store) else "nothing was kept"
            return f"{kept}; run the same command again to start over."
        kept = ", ".join(str(path) for path in checkpoint.list_files())
        return f"run the same command again to continue from {kept}."

    with advise_on_interrupt(advise), reserve_path(work):
        refuse_occupied(place, force)
        stores = StoreFinder.of_model(model, cache, field)
        sequences = open_store(stores.find(store), detector, verify=not no_verify)
        outliers = None if aux is None else open_store(stores.find(aux), detector, verify=not no_verify, as_aux=True)
        stores.refuse_unused_options()
        if outliers is not None:
            refuse_same_data({"ID": sequences, "AUX": outliers})
        announce(estimate_cost([(detector, sequences)]), FAST_ADVICE if is_default(method) and not fast else "")
        detector.fit(sequences, aux=outliers, checkpoint=checkpoint)
        detector.save(out, facts=Facts.of_fit(sequences).to_json())
        checkpoint.delete()
    if as_json:
        facts: dict[str, Any] = {"method": detector.name, "sequences": len(sequences), "detector": out}
        if hasattr(detector, "mean_distance_"):
            facts["mean_distance_"] = detector.mean_distance_
        print_json(facts)
        return
    echo(f"Fitted {detector.name} on {format_count(len(sequences), 'sequence')} of {store} and saved it to {out}.")
