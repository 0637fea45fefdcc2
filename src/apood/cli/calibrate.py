"""`apood calibrate`."""

from pathlib import Path
from typing import Annotated

import typer

from apood.cli.stores import open_store

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
) -> None:
    """Gives a detector its threshold, from held-out in-distribution sequences.

    A new in-distribution input is then accepted with at least the chosen probability.
    """
    import numpy as np

    from apood.decisions.threshold import conformal_threshold
    from apood.detectors.artefact import load

    detector = load(detector_folder)
    sequences = open_store(store, detector)
    conformal_threshold(np.zeros(len(sequences)), accept)  # refuses a bad rate or too few sequences before the work
    detector.calibrate(sequences, accept).save(detector_folder)
    typer.echo(
        f"Threshold {detector.threshold_:.6g}, from {len(sequences):,} sequences of {store}: "
        f"at least {accept:.10g} of in-distribution inputs are accepted."
    )
