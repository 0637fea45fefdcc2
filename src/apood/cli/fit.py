"""`apood fit`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from apood.cli.arguments import open_store, parse_settings, refuse_occupied
from apood.cli.output import advise_on_interrupt, print_json
from apood.support.checks import format_count
from apood.support.errors import InputError
from apood.support.files import refuse_unwritable

__all__ = ["fit"]


def fit(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Token store with in-distribution sequences.")],
    out: Annotated[Path, typer.Option(metavar="DETECTOR", help="Folder of the detector to write.")],
    method: Annotated[str, typer.Option(metavar="NAME", help="One of those that `apood methods` lists.")] = "default",
    aux: Annotated[
        Path | None,
        typer.Option(metavar="STORE", help="Token store with auxiliary outliers, where the method takes them."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the method; may be repeated.")
    ] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How much work an interruption may cost.")
    ] = 5.0,
    force: Annotated[bool, typer.Option("--force", help="Replace the detector that is already there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was fitted as an object.")] = False,
) -> None:
    """Learns a detector from in-distribution sequences.

    The state of a long fit is kept in DETECTOR.checkpoint: after an interruption, the same command goes on from there.
    """
    from apood.detectors.contract.registry import detector_class
    from apood.fitting.checkpoint import Checkpoint

    chosen = detector_class(method)
    detector = chosen(**parse_settings(chosen, settings or []))
    detector.check_parameters()
    if aux is not None and detector.aux == "unused":
        raise InputError(f"The method {chosen.name} learns from in-distribution data alone: leave out --aux.")
    refuse_occupied(out, force)
    refuse_unwritable(out)

    checkpoint = Checkpoint(out.with_name(f"{out.name}.checkpoint"), checkpoint_seconds)

    def kept() -> str:
        if not checkpoint.exists():
            return "nothing was kept; run the same command again to start anew."
        return f"run the same command again to go on from {checkpoint.path}."

    with advise_on_interrupt(kept):
        sequences = open_store(store, detector)
        detector.fit(sequences, None if aux is None else open_store(aux, detector), checkpoint=checkpoint)
        detector.save(out)
        checkpoint.delete()
    if as_json:
        facts: dict[str, Any] = {"method": chosen.name, "sequences": len(sequences), "detector": str(out)}
        if hasattr(detector, "mean_distance_"):
            facts["mean_distance_"] = detector.mean_distance_
        print_json(facts)
        return
    typer.echo(f"Fitted {chosen.name} on {format_count(len(sequences), 'sequence')} of {store} and saved it to {out}.")
