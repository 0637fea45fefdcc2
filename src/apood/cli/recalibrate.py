"""`apood recalibrate`."""

from typing import TYPE_CHECKING, Annotated

import typer

from apood.cli.arguments import refuse_occupied, report_skipped
from apood.cli.options import AsJson, Force, SkipBadRows
from apood.cli.output import echo, print_json
from apood.support.checks import format_count
from apood.support.cloud import parse_place
from apood.support.cloud_folders import find_work_folder
from apood.support.errors import InputError
from apood.support.files import reserve_path

if TYPE_CHECKING:
    from apood.data.record import Skipped
    from apood.decisions.conformal import Calibration
    from apood.decisions.review import Review

__all__ = ["recalibrate"]

_ACCEPT = 0.95  # of a detector that has no threshold yet


def recalibrate(
    detector_folder: Annotated[str, typer.Argument(metavar="DETECTOR", help="Detector that gave the scores.")],
    reviewed: Annotated[
        str,
        typer.Argument(
            metavar="REVIEWED",
            help="Rows (.jsonl or .csv) with score and verdict, which is ID or OOD; - is standard input.",
        ),
    ],
    out: Annotated[str, typer.Option(metavar="DETECTOR", help="Folder to write the recalibrated detector to.")],
    accept: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Share of new in-distribution inputs to accept.", show_default="that of the detector"
        ),
    ] = None,
    random_sample: Annotated[
        bool,
        typer.Option(
            "--random-sample", help="Trust that the rows were chosen at random, even if they do not look like it."
        ),
    ] = False,
    skip_bad: SkipBadRows = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Set the threshold of a detector from reviewed traffic: scores and verdicts, no texts.

    The inputs with the verdict ID are the new calibration. If the reviewed inputs are a random sample of the traffic, a
    new in-distribution input of it is accepted with at least the probability --accept. If some were more likely to be
    reviewed than others, give each row the probability with which it was chosen; rows are then dropped at random until
    the rest is a random sample.
    """
    from apood.data.record import Skipped
    from apood.decisions.conformal import check_level
    from apood.pipeline.facts import load_detector_and_facts

    if accept is not None:
        check_level(accept, "accept")  # before the rows are read, which a pipe gives only once
    place = parse_place(out)
    refuse_occupied(place, force)
    detector, facts = load_detector_and_facts(detector_folder)
    before = detector.calibration if hasattr(detector, "threshold_") else None
    skipped = Skipped() if skip_bad else None
    review = _read_review(reviewed, skipped)
    if before is not None and not random_sample:
        try:
            review.refuse_selected(before)
        except InputError as error:
            raise InputError(f"{error} If it was a random sample, say so with --random-sample.") from error
    rate = accept if accept is not None else before.accept if before is not None else _ACCEPT
    after = review.calibrate(rate, coarse=before is not None and before.coarse)
    detector.calibration = after
    with reserve_path(find_work_folder(place)):
        detector.save(out, facts=facts.after_calibration(None, after.accept).to_json())
    if skipped is not None:
        report_skipped(skipped.count, skipped.first)
    _print_result(review, before, after, as_json=as_json)


def _read_review(name: str, skipped: "Skipped | None") -> "Review":
    import numpy as np

    from apood.data.record import BadRecordError, keep_good
    from apood.data.score_rows import read_reviewed
    from apood.decisions.review import Review

    try:
        rows = [record.item for record in keep_good(read_reviewed(name), skipped)]
    except BadRecordError as error:
        raise InputError(f"{str(error).rstrip('.')}; skip such rows with --skip-bad.") from error
    scores, is_id, probabilities = zip(*rows, strict=True) if rows else ((), (), ())
    return Review.of(list(scores), np.array(is_id, dtype=np.bool_), np.array(probabilities, dtype=np.float64))


def _print_result(review: "Review", before: "Calibration | None", after: "Calibration", *, as_json: bool) -> None:
    from apood.decisions.conformal import accepted_interval

    ood = review.scores[~review.is_id]
    low, high = accepted_interval(after)
    if as_json:
        print_json(
            {
                "threshold": after.threshold,
                "accept": after.accept,
                "accepted_low": low,
                "accepted_high": high,
                "id": len(after.scores),
                "ood": len(ood),
                "ood_refused": int((~after.accepts(ood)).sum()),
                "unscored": review.unscored,
                "dropped": review.dropped,
            }
        )
        return
    former = f" (before: {before.threshold:.6g})" if before is not None else ""
    echo(
        f"Threshold {after.threshold:.6g}{former}, from {format_count(len(after.scores), 'input')} with the verdict "
        f"ID. If the reviewed inputs are a random sample of the traffic, at least {after.accept:.10g} of its "
        f"in-distribution inputs are accepted; for this sample, {low:.3f} to {high:.3f} with probability 0.95."
    )
    if len(ood):
        refused = int((~after.accepts(ood)).sum())
        earlier = f" (before: {int((~before.accepts(ood)).sum()):,})" if before is not None else ""
        echo(f"Refused among the inputs with the verdict OOD: {refused:,} of {len(ood):,}{earlier}.")
    if review.unscored:
        echo(f"{format_count(review.unscored, 'input')} without a score did not count: such inputs are always refused.")
    if review.dropped:
        echo(f"{format_count(review.dropped, 'input')} did not count, dropped at random because of their probability.")
