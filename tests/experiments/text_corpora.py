"""Small corpora with a declaration: ID texts use the first words, the others other words."""

import json
import random
from pathlib import Path

from tiny_models import WORDS

__all__ = ["DECLARATION", "make_texts", "write_corpora"]

DECLARATION = """
salt = "test"
[limits]
train = 200
evaluated = 60
spliced = 40
aux = 60
[corpora.small]
status = "development"
id_train = "train.jsonl"
id_test = "test.jsonl"
aux = "aux.jsonl"
max_tokens = 24
max_new_tokens = 4
[corpora.small.ood]
other = {input = "other.jsonl", kind = "far"}
alike = {input = "alike.jsonl", kind = "near"}
[corpora.whole]
status = "untouched"
id = ["train.jsonl", "test.jsonl"]
max_tokens = 24
max_new_tokens = 4
[corpora.whole.ood]
other = {input = "other.jsonl", kind = "far"}
"""

_SETS = {
    "train": (300, WORDS[:16]),
    "test": (100, WORDS[:16]),
    "aux": (80, WORDS[14:30]),
    "other": (60, WORDS[20:]),
    "alike": (60, WORDS[4:22]),
}


def make_texts(name: str, start: int = 0, count: int | None = None) -> list[str]:
    """Return the texts of a set from number `start` on; each has one to three sentences."""
    most, words = _SETS[name]
    texts = []
    for number in range(start, start + (count or most)):
        dice = random.Random(f"{name} {number}")
        lengths = [dice.randint(4, 7) for _ in range(dice.randint(1, 3))]
        texts.append(" ".join(" ".join([*dice.choices(words, k=k), "word0."]) for k in lengths))
    return texts


def write_corpora(folder: Path) -> Path:
    """Write all files and the declaration, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _SETS:
        lines = [json.dumps({"text": text}) for text in make_texts(name)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "corpora.toml").write_text(DECLARATION, encoding="utf-8")
    return folder / "corpora.toml"
