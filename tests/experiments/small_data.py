"""What the miniature data of the experiments is made of."""

import json
import random
from pathlib import Path
from typing import Any

__all__ = ["COUNTS", "SETTINGS", "random_texts", "write_lines"]

SETTINGS = """
[settings]
train = 48
aux = 24
evaluated = 16
max_tokens = 12
max_new_tokens = 4
samples = 2
steps = 4
betas = [0.5, "1/sqrt(D)"]
queries = [4]
aux_weights = [1.0]
aux_counts = [8]
"""
COUNTS = {"train": 60, "test": 20, "aux": 30, "other": 20, "more": 20}


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def random_texts(count: int, words: list[str], seed: int) -> list[str]:
    dice = random.Random(seed)
    return [" ".join(dice.choices(words, k=dice.randint(4, 10))) for _ in range(count)]
