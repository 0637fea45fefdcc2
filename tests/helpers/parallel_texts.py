"""A language pair that a tiny translator learns in seconds: every word has another word, in the same order."""

import random

from apood.data.record import Pair

__all__ = ["WORDS", "translated", "word_pairs"]

WORDS = [first + second for first in ("ba", "ko", "li") for second in ("ran", "sil", "tov", "pex")]
_OTHERS = dict(zip(WORDS, WORDS[5:] + WORDS[:5], strict=True))


def translated(text: str) -> str:
    return " ".join(_OTHERS[word] for word in text.split())


def word_pairs(count: int, seed: int = 0) -> list[Pair]:
    dice = random.Random(seed)
    sources = [" ".join(dice.choices(WORDS, k=dice.randint(1, 5))) for _ in range(count)]
    return [Pair(source, translated(source)) for source in sources]
