"""`apood calibrate`."""

import warnings
from pathlib import Path
from typing import Annotated

import typer

from apood.cli.arguments import open_store
from apood.cli.output import print_json
from apood.support.checks import format_count
from apood.support.errors import DataWarning

__all__ = ["calibrate"]


def calibrate(
    detector_folder: Annotated[Path, typer.Argument(metavar="DETECTOR", help="Folder that `apood fit` wrote.")],
    store: Annotated[
        Path,
        typer.Argument(metavar="STORE", help="Token store with in-distribution sequences that were not fitted on."),
    ],
    accept: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of in-distribution inputs to let through.")
    ] = 0.95,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the threshold as an object; null where it is infinite.")
    ] = False,
) -> None:
    """Gives a detector its threshold, from held-out in-distribution sequences.

    A new in-distribution input is then accepted with at least the chosen probability.
    """
    import numpy as np

    from apood.decisions.conformal import conformal_threshold
    from apood.detectors.contract.artefact import load

    detector = load(detector_folder)
    sequences = open_store(store, detector)
    conformal_threshold(np.zeros(len(sequences)), accept)  # refuses a bad rate or too few sequences before the work
    detector.calibrate(sequences, accept).save(detector_folder)
    promise = f"at least {accept:.10g} of in-distribution inputs are accepted"
    if detector.was_fitted_on(sequences):
        promise = "what share of new in-distribution inputs it accepts is not known"
    if np.isneginf(detector.threshold_):
        unscored = int(np.isneginf(detector.calibration_scores_.numpy()).sum())
        warnings.warn(
            f"{unscored:,} of {len(sequences):,} calibration sequences are empty or as far outside, too many for an "
            f"accept rate of {accept:.10g}: the threshold is -inf and refuses nothing but such sequences.",
            DataWarning,
            stacklevel=1,
        )
        promise = "all but empty inputs are accepted"
    if as_json:
        print_json({"threshold": detector.threshold_, "accept": accept, "sequences": len(sequences)})
        return
    typer.echo(
        f"Threshold {detector.threshold_:.6g}, from {format_count(len(sequences), 'sequence')} of {store}: {promise}."
    )
