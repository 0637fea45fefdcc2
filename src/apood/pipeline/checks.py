"""Checks that a person would make before trusting a threshold or a figure."""

import warnings
from collections.abc import Mapping

from apood.pipeline.copies import Sketches, find_copies, read_texts, sketch_texts
from apood.pipeline.facts import Facts
from apood.pipeline.seen import Seen, count_tokens
from apood.support.checks import format_count
from apood.support.errors import DataWarning, InputError
from apood.tokens.digests import content_digest
from apood.tokens.source import TokenSource

__all__ = ["refuse_same_data", "warn_of_copies", "warn_of_lengths", "warn_of_misuse"]

_COPIES, _FEW_COPIES = 0.01, 2  # copies that are tolerated, as a share and as a number: they hardly change a figure
_LENGTHS = 0.1  # the share of texts of unusual length that is tolerated; by definition it is 0.02 in the same data


def refuse_same_data(sources: Mapping[str, TokenSource]) -> None:
    """Raise an InputError if two of the sources, named by their roles, have the same sequences."""
    known: dict[str, str] = {}
    for role, source in sources.items():
        if (other := known.setdefault(content_digest(source), role)) != role:
            raise InputError(f"The {role} sequences are the {other} sequences: each set must be data of its own.")


def warn_of_misuse(source: TokenSource, facts: Facts, role: str) -> None:
    """Warn if texts in this role are copies of training texts, or unlike in length to those that set the threshold."""
    if facts.sketches is not None:
        warn_of_copies(source, facts.sketches, role)
    if facts.calibration is not None:
        warn_of_lengths(source, facts.calibration, role)


def warn_of_copies(source: TokenSource, known: Sketches, role: str) -> None:
    """Warn if texts are copies of training texts, or nearly, whose sketches are known."""
    texts = read_texts(source)
    if not texts:
        return
    copies = int(find_copies(sketch_texts(texts), known).sum())
    if copies > max(_FEW_COPIES, _COPIES * len(texts)):
        warnings.warn(
            f"{copies:,} of {format_count(len(texts), f'{role} text')} are copies of training texts, or nearly: their "
            "scores are higher than those of new texts; leave them out.",
            DataWarning,
            stacklevel=3,
        )


def warn_of_lengths(source: TokenSource, seen: Seen, role: str) -> None:
    """Warn if many texts are shorter or longer than nearly all of those that set the threshold."""
    tokens = count_tokens(source)
    short, long = int((tokens < seen.short).sum()), int((tokens > seen.long).sum())
    for count, word, limit in ((short, "shorter", seen.short), (long, "longer", seen.long)):
        if count > _LENGTHS * len(tokens):
            warnings.warn(
                f"{count:,} of {format_count(len(tokens), f'{role} text')} are {word} than 99% of the texts that set "
                f"the threshold ({limit:,} tokens): the accept rate is not promised for them; calibrate with texts of "
                "the lengths that the detector is used on.",
                DataWarning,
                stacklevel=3,
            )
