"""Token contributions on a terminal: the text as it reads, its suspicious words marked."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from apood.support.errors import InputError

__all__ = ["marked_text"]

# Foreground and background are both set, so that marks read alike on dark and on light terminals.
_STYLES = ("", "black on bright_yellow", "black on yellow", "bold white on red")
_LEVELS = (0.25, 0.5, 0.75)  # shares of the most suspicious word's contribution
_BRACKETED = 2  # from this level on words stand in brackets, which survive pipes and NO_COLOR

_SPACES = (" ", "\n", "\t", "Ġ", "Ċ", "▁")
_SPECIAL = re.compile(r"\[(?:CLS|SEP|PAD|MASK)\]|<[^<>\s]+>")
_NO_SPACE_BEFORE = re.compile(r"[.,;:!?)\]}%'_/-]")
_NO_SPACE_AFTER = re.compile(r"[(\[{'_/-]")


@dataclass
class _Word:
    text: str
    contribution: float
    spaced: bool  # white space stands before it


def marked_text(pieces: Sequence[str], contributions: Sequence[float]) -> Text:
    """Joins the word pieces of a tokenizer to readable text and marks the words that made it suspicious.

    Positive contributions are suspicious. A word has the sum of its pieces' contributions. From a quarter of the
    largest one on its background is coloured, in three steps; words of the upper two steps stand in [brackets].

    Args:
        pieces: either such as join to the text, with their spaces, or as a tokenizer keeps them: of WordPiece (`##`
            continues a word), SentencePiece (`▁` begins one) or byte-level BPE (`Ġ` begins one).
        contributions: one for each piece; those of special tokens such as `[CLS]` are not shown.
    """
    if len(pieces) != len(contributions):
        raise InputError(f"Each piece needs one contribution, got {len(pieces)} pieces, {len(contributions)} numbers.")
    if not all(map(math.isfinite, contributions)):
        raise InputError(f"Contributions must be finite numbers, got {list(contributions)}.")
    words = _words(pieces, contributions)
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


def _words(pieces: Sequence[str], contributions: Sequence[float]) -> list[_Word]:
    spaces_marked = any(piece.startswith(_SPACES) for piece in pieces)
    # WordPiece takes every punctuation mark for a word, and does not know whether white space stood before it
    guess_spaces = not spaces_marked or ("[CLS]" in pieces and any(piece.startswith(" ") for piece in pieces))
    words: list[_Word] = []
    for piece, contribution in zip(pieces, contributions, strict=True):
        if _SPECIAL.fullmatch(piece.strip()):
            continue
        text = piece.lstrip("".join(_SPACES)) if spaces_marked else piece.removeprefix("##")
        if not words:
            words.append(_Word(text, contribution, spaced=False))
        elif (text != piece) == spaces_marked:
            spaced = not guess_spaces or _space_between(words[-1].text, text)
            words.append(_Word(text, contribution, spaced))
        else:
            words[-1].text += text
            words[-1].contribution += contribution
    if any("Ġ" in piece for piece in pieces):
        for word in words:
            word.text = _decoded(word.text)
    return words


def _space_between(left: str, right: str) -> bool:
    """Around most punctuation marks there is no white space on one side."""
    return not (_NO_SPACE_BEFORE.fullmatch(right) or _NO_SPACE_AFTER.fullmatch(left))


def _decoded(text: str) -> str:
    """Byte-level BPE writes each byte of UTF-8 as one character: its own, or one above 255 if it is not printable."""
    return bytes(_BYTE_OF[character] for character in text if character in _BYTE_OF).decode(errors="replace")


_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(_UNPRINTABLE)}
