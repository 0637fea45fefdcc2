"""`apood calibrate`."""

from pathlib import Path
from typing import Annotated

import typer

from apood.cli.arguments import NoVerify, open_store
from apood.cli.output import echo, print_json
from apood.support.checks import format_count

__all__ = ["calibrate"]


def calibrate(
    detector_folder: Annotated[
        Path, typer.Argument(metavar="DETECTOR", help="Folder that `apood fit` wrote; the threshold is saved there.")
    ],
    store: Annotated[
        Path,
        typer.Argument(metavar="STORE", help="Token store of in-distribution sequences that were not used in the fit."),
    ],
    accept: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of new in-distribution inputs to accept.")
    ] = 0.95,
    no_verify: NoVerify = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Set the threshold of a detector, from held-out in-distribution sequences.

    A new in-distribution input is then accepted with at least the probability --accept. Calibration can be repeated at
    any time, with other sequences or another share, without a new fit.
    """
    import numpy as np

    from apood.decisions.conformal import conformal_threshold
    from apood.detectors.contract.artefact import load
    from apood.tokens.documents import count_documents

    detector = load(detector_folder)
    sequences = open_store(store, detector, verify=not no_verify)
    count = count_documents(sequences)
    conformal_threshold(np.zeros(count), accept)  # fails early if the share is invalid or the sequences are too few
    detector.calibrate(sequences, accept).save(detector_folder)
    promise = f"at least {accept:.10g} of in-distribution inputs are accepted"
    if detector.was_fitted_on(sequences):
        promise = "it was fitted on these, so the share of new in-distribution inputs that it accepts is unknown"
    if as_json:
        print_json({"threshold": detector.threshold_, "accept": accept, "sequences": count})
        return
    echo(f"Threshold {detector.threshold_:.6g}, from {format_count(count, 'sequence')} of {store}: {promise}.")
