"""Checks that a person would make before trusting a threshold or a figure."""

import warnings
from collections.abc import Mapping

from apood.pipeline.copies import find_copies, sketch_source
from apood.pipeline.facts import Facts
from apood.pipeline.seen import MOST_UNUSUAL, Seen, count_tokens
from apood.support.checks import format_count
from apood.support.errors import DataWarning, InputError
from apood.tokens.digests import content_digest
from apood.tokens.documents import count_documents
from apood.tokens.source import TokenSource

__all__ = ["describe_misuse", "refuse_same_data", "warn_of_misuse"]

_COPIES, _FEW_COPIES = 0.01, 2  # copies that are tolerated, as a share and as a number: they hardly change a figure


def refuse_same_data(sources: Mapping[str, TokenSource]) -> None:
    """Raise an InputError if two of the sources, named by their roles, have the same sequences."""
    known: dict[str, str] = {}
    for role, source in sources.items():
        if (other := known.setdefault(content_digest(source), role)) != role:
            raise InputError(f"The {role} sequences are the {other} sequences: each set must be data of its own.")


def warn_of_misuse(source: TokenSource, facts: Facts, role: str) -> None:
    """Warn with the sentences of `describe_misuse`."""
    for sentence in describe_misuse(source, facts, role):
        warnings.warn(sentence, DataWarning, stacklevel=2)


def describe_misuse(source: TokenSource, facts: Facts, role: str) -> list[str]:
    """Return sentences about copies of training texts, and about lengths unlike those that set the threshold."""
    lengths = [] if facts.calibration is None else _describe_lengths(source, facts.calibration, role)
    return _describe_copies(source, facts, role) + lengths


def _describe_copies(source: TokenSource, facts: Facts, role: str) -> list[str]:
    sketches = None if facts.sketches is None else sketch_source(source)
    if facts.sketches is None or sketches is None or not len(sketches):
        return []
    found = find_copies(sketches, facts.sketches)
    count, learnt = count_documents(source), len(facts.sketches) if facts.training is None else facts.training.documents
    # Of many texts, only some are compared. A copy of a training text is found if that text is among them.
    share = min(1.0, float(found.mean()) * learnt / max(len(facts.sketches), 1))
    if found.sum() <= _FEW_COPIES or share <= _COPIES:
        return []
    about = "" if (len(sketches), len(facts.sketches)) == (count, learnt) else "About "
    return [
        f"{about}{round(share * count):,} of {format_count(count, f'{role} text')} are copies of training texts, or "
        "nearly: their scores are higher than those of new texts; leave them out."
    ]


def _describe_lengths(source: TokenSource, seen: Seen, role: str) -> list[str]:
    tokens = count_tokens(source)
    short, long = int((tokens < seen.short).sum()), int((tokens > seen.long).sum())
    return [
        f"{count:,} of {format_count(len(tokens), f'{role} text')} are {word} than 99% of the texts that set "
        f"the threshold ({limit:,} tokens): the accept rate is not guaranteed for them; calibrate with texts of "
        "the lengths that the detector is used on."
        for count, word, limit in ((short, "shorter", seen.short), (long, "longer", seen.long))
        if count > MOST_UNUSUAL * len(tokens)
    ]
