"""`apood calibrate`."""

from typing import Annotated

import typer

from apood.cli.arguments import open_store
from apood.cli.options import Accept, AsJson, CacheFolder, EncoderFolder, NoVerify, TextField
from apood.cli.output import echo, print_json
from apood.cli.stores import StoreFinder
from apood.support.checks import format_count

__all__ = ["calibrate"]


def calibrate(
    detector_folder: Annotated[
        str, typer.Argument(metavar="DETECTOR", help="Folder of a detector; the threshold is saved there.")
    ],
    store: Annotated[
        str,
        typer.Argument(
            metavar="STORE_OR_TEXTS",
            help="Token store of in-distribution sequences that were not used in the fit, or such texts.",
        ),
    ],
    accept: Accept = 0.95,
    model: EncoderFolder = None,
    field: TextField = None,
    cache: CacheFolder = None,
    no_verify: NoVerify = False,
    as_json: AsJson = False,
) -> None:
    """Set the threshold of a detector, from held-out in-distribution sequences.

    A new in-distribution input is then accepted with at least the probability --accept. Calibration can be repeated at
    any time, with other sequences or another share, without a new fit.
    """
    from apood.decisions.conformal import check_level, find_rank
    from apood.pipeline.checks import warn_of_misuse
    from apood.pipeline.facts import load_detector_and_facts
    from apood.tokens.documents import count_documents

    check_level(accept, "accept")
    detector, facts = load_detector_and_facts(detector_folder)
    stores = StoreFinder.of_detector(detector, model, cache, field)
    sequences = open_store(stores.find(store), detector, verify=not no_verify)
    stores.refuse_unused_options()
    count = count_documents(sequences)
    find_rank(count, accept)  # fails early if the sequences are too few
    facts = facts.after_calibration(sequences, accept)
    detector.calibrate(sequences, accept).save(detector_folder, facts=facts.to_json())
    promise = f"at least {accept:.10g} of in-distribution inputs are accepted"
    if detector.was_fitted_on(sequences):
        promise = "it was fitted on these, so the share of new in-distribution inputs that it accepts is unknown"
    else:
        warn_of_misuse(sequences, facts, "calibration")
    if as_json:
        print_json({"threshold": detector.threshold_, "accept": accept, "sequences": count})
        return
    echo(f"Threshold {detector.threshold_:.6g}, from {format_count(count, 'sequence')} of {store}: {promise}.")
