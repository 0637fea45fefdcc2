"""`apood report`."""

import shlex
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apood.cli.arguments import open_store, parse_named_stores
from apood.cli.options import CacheFolder, EncoderFolder, HeldOutInputs, NoVerify, OodSets, TextField
from apood.cli.output import check_file, echo, format_json
from apood.cli.stores import StoreFinder
from apood.support.errors import InputError
from apood.support.files import atomic_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from apood.detectors.contract.base import Detector
    from apood.encoders.opening import AnyTextEncoder
    from apood.explain.text_explanation import TextExplanation
    from apood.pipeline.facts import Facts
    from apood.report.page.summary import Role, ScoredSet
    from apood.tokens.source import TokenSource

__all__ = ["report"]

_SHOWN_FIRST: tuple["Role", ...] = ("new", "OOD", "ID")  # the roles of sets by how much their inputs interest


def report(
    detector_folder: Annotated[str, typer.Argument(metavar="DETECTOR", help="Folder of a calibrated detector.")],
    id_store: HeldOutInputs,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Page to write: .html. A .json file is written beside it.")],
    ood_stores: OodSets = None,
    new_stores: Annotated[
        list[str] | None,
        typer.Option(
            "--new", metavar="NAME=STORE_OR_TEXTS", help="Name and inputs of a set of which nothing is known."
        ),
    ] = None,
    foreign: Annotated[
        int,
        typer.Option(
            min=0, max=100, metavar="N", help="Number of inputs to show with marks: the most foreign ones of all sets."
        ),
    ] = 10,
    model: EncoderFolder = None,
    field: TextField = None,
    cache: CacheFolder = None,
    no_verify: NoVerify = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write a report about a detector: one page to send to others, and a JSON file with the same content.

    The page says what the detector is and what it was fitted on, how many inputs of each set are refused at which
    accept rate, and how well the scores separate the sets. It shows the most foreign inputs with their suspicious
    words: those of the --new sets or, without any, of the --ood sets or, without any, of --id. The page loads nothing
    and runs no script. It contains texts of your inputs: send it only to people who may read them, or leave the texts
    out with --foreign 0.
    """
    from apood.data.inputs import refuse_repeated_stdin
    from apood.evaluation.health import describe_passing, examine
    from apood.pipeline.checks import refuse_same_data
    from apood.pipeline.facts import load_detector_and_facts
    from apood.pipeline.opening import open_text_encoder_of
    from apood.report.page.render import render_report
    from apood.report.page.summary import summarise
    from apood.report.tables import refuse_without_jinja

    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"The page must end in .html, got {out}.")
    json_file = out.with_suffix(".json")
    for file in (out, json_file):
        check_file(file, force=force)
    refuse_without_jinja()
    named: dict[Role, dict[str, str]] = {
        "OOD": parse_named_stores(ood_stores or []),
        "new": parse_named_stores(new_stores or [], "new"),
    }
    refuse_repeated_stdin([id_store, *(given for own in named.values() for given in own.values())])
    detector, facts = load_detector_and_facts(detector_folder)
    detector.calibration  # noqa: B018 - an error before any work if there is none
    stores = StoreFinder.of_detector(detector, model, cache, field)
    sources = _open(detector, stores, {"ID": {"ID": id_store}, **named}, verify=not no_verify)
    refuse_same_data({role if role == "ID" else f"{role} {name}": source for (role, name), source in sources.items()})
    shows = foreign > 0 and _can_show(detector, sources)
    stores.refuse_unused_options(used=["--model"] if shows else [])
    encoder = open_text_encoder_of(detector, model=model) if shows else None  # an error before the scoring
    sets = [_score(detector, name, role, source) for (role, name), source in sources.items()]
    findings = [one.sentence for one in examine(detector, facts, sources["ID", "ID"], sets[0].scores)]
    shown = [] if encoder is None else _explain_foreign(detector, facts, encoder, sets, list(sources.values()), foreign)
    known = {name: seen.to_json() for name in ("training", "calibration") if (seen := getattr(facts, name)) is not None}
    command = shlex.join(["apood", *sys.argv[1:]])
    accepts = detector.calibration.accepts
    refused = {one.name: float((~accepts(one.scores)).mean()) for one in sets if one.role == "OOD"}
    findings += describe_passing(refused, detector.calibration.accept)
    content = summarise(detector, known, sets, shown, command, findings)
    page = render_report(content, [explanation for _, _, explanation in shown])
    for file, text in ((json_file, format_json(content, indent=1)), (out, page)):
        with atomic_file(file) as place:
            place.write_text(text, encoding="utf-8")
    echo(f"Written to {out} and {json_file}.")


def _open(
    detector: "Detector", stores: StoreFinder, named: "Mapping[Role, Mapping[str, str]]", *, verify: bool
) -> "dict[tuple[Role, str], TokenSource]":
    """Return the inputs of all sets by their roles and names."""
    names = [name for own in named.values() for name in own]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"Two sets are called {repeated[0]!r}: give each its own name.")
    return {
        (role, name): open_store(stores.find(folder), detector, verify=verify)
        for role, own in named.items()
        for name, folder in own.items()
    }


def _score(detector: "Detector", name: str, role: "Role", source: "TokenSource") -> "ScoredSet":
    from apood.pipeline.seen import count_tokens
    from apood.report.page.summary import ScoredSet

    if not len(source):
        raise InputError(f"The set {name!r} has no inputs.")
    return ScoredSet(name, role, detector.score_samples(source), count_tokens(source))


def _find_shown_role(roles: "Collection[Role]") -> "Role":
    """Return the role of the sets whose most foreign inputs are shown."""
    return next(role for role in _SHOWN_FIRST if role in roles)


def _can_show(detector: "Detector", sources: "Mapping[tuple[Role, str], TokenSource]") -> bool:
    """Return whether the detector can explain inputs, and the texts of some that would be shown are known."""
    from apood.pipeline.copies import keeps_texts

    shown = _find_shown_role({role for role, _ in sources})
    known = any(keeps_texts(source) for (role, _), source in sources.items() if role == shown)
    return known and detector.explains and (detector.encoder_ or {}).get("mode") == "input"


def _explain_foreign(
    detector: "Detector",
    facts: "Facts",
    encoder: "AnyTextEncoder",
    sets: "list[ScoredSet]",
    sources: "list[TokenSource]",
    count: int,
) -> "list[tuple[str, int, TextExplanation]]":
    """Return the `count` most foreign inputs whose texts are known, with their explanations.

    They are divided equally among the sets of the role that is shown, so that no set hides the others.
    """
    import numpy as np

    from apood.explain.explaining import explain_texts
    from apood.pipeline.copies import keeps_texts, read_texts

    shown = _find_shown_role({one.role for one in sets})
    ranked = sorted(
        (rank, place, int(number))
        for place, (one, source) in enumerate(zip(sets, sources, strict=True))
        if one.role == shown and keeps_texts(source)
        for rank, number in enumerate(_rank_foreign(one.scores)[:count])
    )[:count]
    chosen = [
        (sets[place].name, number, text)
        for place, _, number in sorted((place, rank, number) for rank, place, number in ranked)
        if (text := read_texts(sources[place], np.array([number]))[0]).strip()
    ]
    found = explain_texts(detector, encoder, [text for _, _, text in chosen], describe_length=facts.describe_length)
    return [(name, number, one) for (name, number, _), one in zip(chosen, found, strict=True)]


def _rank_foreign(scores: "npt.NDArray[np.float64]") -> "npt.NDArray[np.int64]":
    """Return the numbers of the inputs that have a finite score, the most foreign first."""
    import numpy as np

    finite = np.flatnonzero(np.isfinite(scores))
    return finite[np.argsort(scores[finite], kind="stable")]
