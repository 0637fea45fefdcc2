"""Token contributions on a terminal: readable text with its suspicious words marked."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from apood.support.errors import InputError

__all__ = ["marked_text"]

# Foreground and background are both set, so that marks look alike on dark and light terminals.
_STYLES = ("", "black on bright_yellow", "black on yellow", "bold white on red")
_LEVELS = (0.25, 0.5, 0.75)  # relative to the contribution of the most suspicious word
_BRACKETED = 2  # words of this level and above are put in brackets, which survive pipes and NO_COLOR

_SPACES = (" ", "\n", "\t", "Ġ", "Ċ", "▁")
_SPECIAL = re.compile(r"\[(?:CLS|SEP|PAD|MASK)\]|<[^<>\s]+>")
_NO_SPACE_BEFORE = re.compile(r"[.,;:!?)\]}%'_/-]")
_NO_SPACE_AFTER = re.compile(r"[(\[{'_/-]")


@dataclass
class _Word:
    text: str
    contribution: float
    spaced: bool  # there is white space before it


def marked_text(pieces: Sequence[str], contributions: Sequence[float]) -> Text:
    """Return the pieces of a tokenizer joined to readable text, with suspicious words marked.

    Positive contributions are suspicious. The contribution of a word is the sum over its pieces. Words with at least a
    quarter of the largest contribution get a coloured background, in three levels. Words of the upper two levels are
    also put in [brackets].

    Args:
        pieces: pieces with their spaces, which make up the text if joined, or the tokens of WordPiece (`##` continues
            a word), SentencePiece (`▁` starts one) or byte-level BPE (`Ġ` starts one).
        contributions: one per piece; special tokens such as `[CLS]` are not shown.
    """
    if len(pieces) != len(contributions):
        raise InputError(f"Each piece needs one contribution, got {len(pieces)} pieces, {len(contributions)} numbers.")
    if not all(map(math.isfinite, contributions)):
        raise InputError(f"Contributions must be finite numbers, got {list(contributions)}.")
    words = _join_words(pieces, contributions)
    largest = max((word.contribution for word in words), default=0.0)
    levels = [sum(word.contribution >= share * largest > 0 for share in _LEVELS) for word in words]
    around = [0, *levels, 0]
    marked = Text()
    for place, word in enumerate(words):
        before, level, after = around[place : place + 3]
        if word.spaced:
            marked.append(" ", _STYLES[min(before, level)])
        opening = "[" if level >= _BRACKETED > before else ""
        closing = "]" if level >= _BRACKETED > after else ""
        marked.append(opening + word.text + closing, _STYLES[level])
    return marked


def _join_words(pieces: Sequence[str], contributions: Sequence[float]) -> list[_Word]:
    spaces_marked = any(piece.startswith(_SPACES) for piece in pieces)
    # WordPiece makes every punctuation mark a word, and does not record whether there was white space before it.
    guess_spaces = not spaces_marked or ("[CLS]" in pieces and any(piece.startswith(" ") for piece in pieces))
    words: list[_Word] = []
    for piece, contribution in zip(pieces, contributions, strict=True):
        if _SPECIAL.fullmatch(piece.strip()):
            continue
        text = piece.lstrip("".join(_SPACES)) if spaces_marked else piece.removeprefix("##")
        if not words:
            words.append(_Word(text, contribution, spaced=False))
        elif (text != piece) == spaces_marked:
            spaced = not guess_spaces or _needs_space(words[-1].text, text)
            words.append(_Word(text, contribution, spaced))
        else:
            words[-1].text += text
            words[-1].contribution += contribution
    if any("Ġ" in piece for piece in pieces):
        for word in words:
            word.text = _decode_bytes(word.text)
    return words


def _needs_space(left: str, right: str) -> bool:
    """Return whether to put a space between two words: most punctuation marks have none on one side."""
    return not (_NO_SPACE_BEFORE.fullmatch(right) or _NO_SPACE_AFTER.fullmatch(left))


def _decode_bytes(text: str) -> str:
    """Return the text of byte-level BPE, which writes each byte of UTF-8 as one character, above 255 if unprintable."""
    return bytes(_BYTES[character] for character in text if character in _BYTES).decode(errors="replace")


_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(_UNPRINTABLE)}
