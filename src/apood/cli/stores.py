"""Arguments that are token stores, or texts that are embedded first."""

import glob
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from apood.cli.arguments import are_sounds, read_text_records
from apood.cli.output import echo
from apood.support.cloud import CloudAddress, parse_place
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.data.record import BadRecord, Record
    from apood.detectors.contract.base import Detector
    from apood.pipeline.token_cache import TokenCache
    from apood.tokens.source import TokenSource

__all__ = ["STDIN", "StoreFinder", "are_texts"]

STDIN = "-"


def are_texts(given: str | Path) -> bool:
    """Return whether an argument names texts, rather than the folder of a token store."""
    place = parse_place(given)
    if isinstance(place, CloudAddress):
        from apood.data.text_files import TEXT_ENDINGS

        return glob.has_magic(place.key) or place.suffix.lower() in TEXT_ENDINGS
    name = str(place)
    return not Path(name).is_dir() and (
        Path(name).is_file() or name == STDIN or ":" in name or glob.has_magic(name) or bool(Path(name).suffix)
    )


def _find_folder(given: str | Path) -> Path:
    from apood.tokens.store import find_store

    return find_store(given)


class StoreFinder:
    """Finds the token stores of arguments. Texts are embedded, and their stores kept in a cache.

    Args:
        make_cache: makes the cache of an encoder, for texts; None if no model was named.
        options: the options that are for texts alone, by their names; None if they are not given.

    Attributes:
        texts_to_embed: how many texts `find_or_sample` did not find embedded.
        seconds_to_embed: about how long embedding them takes.
    """

    def __init__(self, make_cache: "Callable[[], TokenCache] | None", options: Mapping[str, str | None]) -> None:
        self._make_cache, self._options = make_cache, options
        self._cache: TokenCache | None = None
        self._reads_texts = False
        self.texts_to_embed, self.seconds_to_embed = 0, 0.0

    @classmethod
    def of_model(cls, model: str | None, cache: Path | None, field: str | None) -> Self:
        """Return a finder that embeds texts with a model."""

        def make_cache() -> "TokenCache":
            from apood.pipeline.token_cache import TokenCache

            return TokenCache.of_model(cache, str(model))

        return cls(None if model is None else make_cache, {"--model": model, "--field": field})

    @classmethod
    def of_detector(cls, detector: "Detector", model: str | None, cache: Path | None, field: str | None) -> Self:
        """Return a finder that embeds texts with the encoder of a detector; `model` is its folder if it has moved."""

        def make_cache() -> "TokenCache":
            from apood.pipeline.token_cache import TokenCache

            return TokenCache.of_detector(cache, detector, model)

        return cls(make_cache, {"--model": model, "--field": field})

    def find(self, given: str | Path) -> Path:
        """Return the folder of a token store: the given one, a copy of it, or that of the texts in an input."""
        if not are_texts(given):
            return _find_folder(given)
        cache, records = self._read_texts(given)
        known = cache.made
        store = cache.find_store(records)
        if known == 0 < cache.made and sys.stderr.isatty():
            size = cache.count_bytes() / 1e6
            echo(f"Embedded texts are kept in {cache.folder} ({size:,.1f} MB): delete it at any time.", err=True)
        return store

    def find_or_sample(self, given: str | Path) -> "Path | TokenSource":
        """Return the folder of a token store or, for texts that are not embedded yet, tokens that are like theirs.

        Only a few of the texts are embedded, which is enough to know what fits on all of them will cost.
        """
        if not are_texts(given):
            return _find_folder(given)
        cache, records = self._read_texts(given)
        found = cache.find_or_sample(records)
        if isinstance(found, Path):
            return found
        self.texts_to_embed += len(records)
        self.seconds_to_embed += found.seconds
        return found.tokens

    def _read_texts(self, given: str | Path) -> "tuple[TokenCache, list[Record | BadRecord]]":
        """Return the cache, and the texts in a file or a data set."""
        self._reads_texts = True
        if self._make_cache is None:
            raise InputError(
                f"{str(given)!r} is not the folder of a token store; texts in it can be embedded: name a model, as in "
                "--model minilm."
            )
        if are_sounds([str(given)]):
            raise InputError(f"{str(given)!r} holds sounds: embed them with `apood embed`, and give the token store.")
        records = read_text_records(
            [str(given)],
            field=self._options["--field"],
            target_field=None,
            pairs=False,
            allow_empty=False,
            skip_bad=False,
        )
        if self._cache is None:
            self._cache = self._make_cache()
        return self._cache, list(records)

    def refuse_unused_options(self, used: Collection[str] = ()) -> None:
        """Raise InputError if an option for texts was given, and only token stores were found; not for `used` ones."""
        for option, value in self._options.items():
            if value is not None and option not in used and not self._reads_texts:
                raise InputError(f"{option} is for texts, and there are only token stores: leave it out.")
