"""`apood check`."""

from dataclasses import asdict
from typing import Annotated

import typer

from apood.cli.arguments import open_store
from apood.cli.options import CacheFolder, EncoderFolder, HeldOutInputs, NoVerify, TextField
from apood.cli.output import echo, print_json
from apood.cli.stores import StoreFinder
from apood.support.checks import format_count

__all__ = ["check"]


def check(
    detector_folder: Annotated[str, typer.Argument(metavar="DETECTOR", help="Folder of a calibrated detector.")],
    id_store: HeldOutInputs,
    model: EncoderFolder = None,
    field: TextField = None,
    cache: CacheFolder = None,
    no_verify: NoVerify = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check whether a detector treats held-out in-distribution inputs as its calibration guarantees.

    Each finding is a sentence that says what to do: copies of training texts, lengths unlike those of the calibration,
    more refusals than the accept rate allows, p-values that are not uniform, calibration inputs that are longer or
    shorter on average than the training inputs, or inputs that were cut. What cannot be checked is named.
    """
    from apood.evaluation.health import examine, find_checks
    from apood.pipeline.facts import load_detector_and_facts

    detector, facts = load_detector_and_facts(detector_folder)
    calibration = detector.calibration
    stores = StoreFinder.of_detector(detector, model, cache, field)
    source = open_store(stores.find(id_store), detector, verify=not no_verify)
    stores.refuse_unused_options()
    scores = detector.score_samples(source)
    findings = examine(detector, facts, source, scores)
    checks = find_checks(detector, facts, source)
    checked, unchecked = ([name for name, known in checks.items() if known is wanted] for wanted in (True, False))
    refused = int((~calibration.accepts(scores)).sum())
    if as_json:
        facts_found = {"inputs": len(scores), "refused": refused, "accept": calibration.accept}
        print_json(facts_found | {"findings": [asdict(one) for one in findings], "not_checked": unchecked})
        return
    echo(
        f"{refused:,} of {format_count(len(scores), 'held-out input')} are refused; the accept rate is "
        f"{calibration.accept:g}."
    )
    for finding in findings:
        echo(f"- {finding.sentence}")
    if not findings:
        echo(
            f"Nothing is wrong with {', '.join(checked[:-1])} and {checked[-1]}. Whether foreign inputs are refused is "
            "another question: measure it with `apood evaluate`."
        )
    if unchecked:
        echo(f"Not checked, because too little is known: {', '.join(unchecked)}.")
