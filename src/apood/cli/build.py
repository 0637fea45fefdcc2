"""`apood build`."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.arguments import (
    advise_to_skip,
    is_default,
    make_detector,
    read_text_records,
    refuse_occupied,
    report_skipped,
)
from apood.cli.costs import FAST_ADVICE, announce
from apood.cli.options import MODELS, Accept, AsJson, Fast, Force, Method, Settings, SkipBad, TextField
from apood.cli.output import advise_on_interrupt, echo, print_json
from apood.data.conversations import Chat
from apood.support.checks import format_count
from apood.support.cloud import parse_place
from apood.support.cloud_folders import find_work_folder
from apood.support.errors import InputError
from apood.support.files import atomic_folder, find_user_cache, reserve_path

if TYPE_CHECKING:
    from apood.data.record import BadRecord, Record
    from apood.pipeline.text_detector import TextDetector

__all__ = ["build"]

_MARKER = "unfinished-build"  # a file in DETECTOR.building: without it, the folder is something else
_KEEPING = "keeping"  # a file in it, as soon as the stores may be in --keep-stores
_SHORT = 20  # tokens, about 15 words: a detector that has seen shorter texts knows short ones
_SAMPLE = "The quick brown fox jumps over the lazy dog."


def build(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="TEXTS", help="In-distribution texts as for `apood embed`; - is standard input."),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="MODEL",
            help=f"Model that embeds the texts: {MODELS}.",
        ),
    ],
    out: Annotated[str, typer.Option(metavar="DETECTOR", help="Folder to write the detector to.")],
    method: Method = "default",
    fast: Fast = False,
    beginnings: Annotated[
        bool,
        typer.Option("--beginnings", help="Accept short texts that are like beginnings of the training texts."),
    ] = False,
    sentences: Annotated[
        bool,
        typer.Option(
            "--sentences",
            help="Also refuse a text if one of its sentences does not fit the others. For texts of several sentences.",
        ),
    ] = False,
    settings: Settings = None,
    aux: Annotated[
        str | None,
        typer.Option(metavar="TEXTS", help="Texts of auxiliary outliers, for methods that learn from them."),
    ] = None,
    accept: Accept = 0.95,
    hold_out: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the texts that only set the threshold.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed that decides which texts are held out.")] = 0,
    chat: Annotated[
        Chat | None,
        typer.Option(
            help="Which part of a conversation your texts are. If the field holds a list of messages, this part is "
            "taken from it. `apood serve` and `apood proxy` then judge the same part.",
            show_default=False,
        ),
    ] = None,
    field: TextField = None,
    keep_stores: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder to keep the token stores of the texts in: id and aux."),
    ] = None,
    skip_bad: SkipBad = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Build a detector from in-distribution texts, in one step: embed, hold out a part, fit, and set the threshold.

    The result scores new texts with `apood score`, and `apood.load` opens it in Python. What is done so far is kept in
    DETECTOR.building: after an interruption, the same command continues from there.
    """
    from apood.data.inputs import refuse_repeated_stdin
    from apood.data.record import BadRecord
    from apood.pipeline.text_detector import TextDetector
    from apood.tokens.store import StoreIndex

    detector = make_detector(
        method, settings or [], with_aux=aux is not None, fast=fast, beginnings=beginnings, sentences=sentences
    )
    built = TextDetector(model, detector, accept=accept, hold_out=hold_out, seed=seed)
    built.check_parameters()
    refuse_repeated_stdin([*inputs, aux])
    place = parse_place(out)
    refuse_occupied(place, force)  # before the texts are read, which a pipe gives only once
    target = find_work_folder(place)
    work = target.parent / f"{target.name}.building"
    _refuse_other_content(work)
    if keep_stores is not None and not (work / _KEEPING).exists():
        refuse_occupied(keep_stores)
    with advise_to_skip():
        texts = _read(inputs, field, chat, skip_bad)
        outliers = None if aux is None else _read([aux], field, chat, skip_bad)
        built.check(sum(not isinstance(record, BadRecord) for record in texts))
        if (work / _MARKER).exists() and sys.stderr.isatty():
            echo(f"Continuing from {work}.", err=True)
        with advise_on_interrupt(_advise(work)), reserve_path(target):
            refuse_occupied(place, force)
            sets = {"id": texts} | ({} if outliers is None else {"aux": outliers})
            advice = FAST_ADVICE if is_default(method) and not fast else ""
            stores = _fit(built, work, sets, skip_bad, advice)
            built.facts = replace(built.facts, chat=chat)
            skipped = sum(StoreIndex.read(store).tally.get("bad", 0) for store in stores.values())
            if keep_stores is not None:
                (work / _KEEPING).touch()
                _keep(stores, keep_stores)
            built.save(out)  # last, because a detector that is there is not replaced by the same command
            shutil.rmtree(work)
    bad = [record for record in [*texts, *(outliers or [])] if isinstance(record, BadRecord)]
    report_skipped(len(bad), bad[:5])
    own_class = method if ":" in method else None  # which `apood score` does not import by itself
    _report(built, out, own_class, too_long=skipped - len(bad), as_json=as_json)


def _read(inputs: list[str], field: str | None, chat: Chat | None, skip_bad: bool) -> "list[Record | BadRecord]":
    """Return all records; without `skip_bad`, a bad one is an error."""
    from apood.data.record import keep_good

    records = read_text_records(
        inputs, field=field, target_field=None, pairs=False, allow_empty=False, skip_bad=skip_bad, chat=chat
    )
    return list(records if skip_bad else keep_good(records, None))


def _refuse_other_content(work: Path) -> None:
    """Raise InputError if something else than an unfinished build is at its place."""
    if work.exists() and not (work / _MARKER).exists() and (not work.is_dir() or any(work.iterdir())):
        raise InputError(
            f"{work} is needed for the work on the detector, which is deleted at the end, and it holds something else: "
            "move it, or choose another --out."
        )


def _prepare_work(work: Path) -> None:
    """Make the folder of an unfinished build, with a file that says so."""
    _refuse_other_content(work)
    work.mkdir(parents=True, exist_ok=True)
    (work / _MARKER).touch()


def _keep(stores: Mapping[str, Path], folder: Path) -> None:
    """Copy token stores to a folder, all or none, unless an earlier run has done it."""
    from apood.tokens.store import INDEX_FILE

    pairs = [(store / INDEX_FILE, folder / name / INDEX_FILE) for name, store in stores.items()]
    if all(there.is_file() and there.read_bytes() == here.read_bytes() for here, there in pairs):
        return
    refuse_occupied(folder)
    with atomic_folder(folder) as temporary:
        for name, store in stores.items():
            shutil.copytree(store, temporary / name, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    """Give a file a second name; copy it if the disk has no links, or if the target is on another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _advise(work: Path) -> Callable[[], str]:
    def advise() -> str:
        if not work.exists():
            return "nothing was kept; run the same command again to start over."
        return f"what is done is kept in {work}; run the same command again to continue."

    return advise


def _fit(
    built: "TextDetector", work: Path, sets: "dict[str, list[Record | BadRecord]]", skip_bad: bool, advice: str
) -> dict[str, Path]:
    """Embed the texts and fit the detector, from what an earlier run left in `work`. Return the token stores.

    `advice` says how to save time if the fit will be long.
    """
    from apood.evaluation.cost import estimate_cost
    from apood.fitting.optimise import Checkpoint
    from apood.pipeline.token_cache import TokenCache, describe_source
    from apood.tokens.source import split
    from apood.tokens.store import TokenStore

    reads = sorted(built.detector.requires | built.detector.welcomes)
    settings = describe_source(str(built.model), lambda: built.encoder)  # an error before there is a folder
    _prepare_work(work)
    # Texts that another command has embedded need not be embedded again.
    cache = TokenCache(work, {**settings, "reads": reads}, lambda: built.encoder, others=find_user_cache("tokens"))
    stores = {name: cache.find_store(records, skip_bad=skip_bad) for name, records in sets.items()}
    tokens = {name: TokenStore(store) for name, store in stores.items()}
    rest, _ = split(tokens["id"], built.hold_out, built.seed)
    announce(estimate_cost([(built.detector, rest)]), advice)
    built.fit_tokens(tokens["id"], tokens.get("aux"), checkpoint=Checkpoint(work / "checkpoint"))
    return stores


def _report(built: "TextDetector", out: str, own_class: str | None, *, too_long: int, as_json: bool) -> None:
    from apood.decisions.conformal import accepted_interval
    from apood.detectors.fusion import Fusion

    method = built.detector.name
    training, held_out = built.facts.training, built.facts.calibration
    assert training is not None and held_out is not None
    imports = "" if own_class is None else f" --import {shlex.quote(own_class)}"
    example = f"echo {shlex.quote(_SAMPLE)} | apood{imports} score {shlex.quote(out)} -"
    low, high = accepted_interval(built.detector.calibration)
    if as_json:
        facts: dict[str, Any] = {"method": method, "detector": out, "threshold": built.detector.threshold_}
        print_json(
            facts | {"accept": built.accept, "training": training.to_json(), "calibration": held_out.to_json()}
            | {"accepted_low": low, "accepted_high": high, "too_long": too_long, "example": example}
        )  # fmt: skip
        return
    echo(
        f"Learnt from {format_count(training.documents, 'text')}, 98% of them of {training.short:,} to "
        f"{training.long:,} tokens, and held out {held_out.documents:,} to set the threshold: a new in-distribution "
        f"text is accepted with probability {built.accept:g} or more (this threshold very likely accepts {low:.1%} to "
        f"{high:.1%} of such texts; the more texts, the narrower)."
    )
    if isinstance(built.detector, Fusion) and not built.detector.beginnings and training.short > _SHORT:
        other = ", or accept those that are like beginnings of these texts with --beginnings"
        echo(
            f"It may refuse a text of fewer than {training.short:,} tokens just because it has hardly seen any. If "
            f"short texts can be in-distribution, add some{'' if built.detector.sentences else other}."
        )
    if too_long:
        echo(
            f"Left out {format_count(too_long, 'text')} of too many tokens. The detector refuses such texts, so the "
            "accept rate is not guaranteed for them."
        )
    echo(f"Saved {method} to {out}. Try it:\n\n  {example}")
