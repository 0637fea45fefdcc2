"""Damaged artefacts and stores: they are refused with a sentence, or the damage changes nothing.

A mutation is harmful if a detector or a store opens without an error and its scores or decisions are others.
"""

import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workshop import Material, Tally, watch

__all__ = ["break_files"]

_ODD_VALUES: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 10**400, 0.5, "NaN", "", "é", "../x", [], {}, [[]], [1, "a"], {"a": 1},
    "__proto__", 1e308, -0.0, "x" * 10_000,
]  # fmt: skip


def break_files(count: int, seed: int, folder: Path) -> Tally:
    """Damage `count` copies of an artefact or a store, and tally what became of each."""
    material, rng, tally = Material.make(folder / "good"), random.Random(seed), Tally()
    expected = _score(material.folder / "detector", material.folder / "held-out")
    place = folder / "damaged"
    for number in range(count):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        what = rng.choice(("detector", "detector", "held-out"))
        for name in ("detector", "held-out"):
            shutil.copytree(material.folder / name, place / name)
        damage = _damage(rng, place / what)
        ending = watch(lambda: _try_score(place / "detector", place / "held-out"))
        shown = f"mutation {number} of {what}: {damage}"
        if ending.code is None:
            tally.note("hangs", f"hangs: {shown}")
        elif ending.code != 0 or ending.value is None:
            tally.note("tracebacks", f"{shown}\n{ending.printed[-600:]}")
        elif ending.value == "refused":
            tally.note("refused")
        elif ending.value == expected:
            tally.note("harmless")
        else:
            tally.note("harmful", f"accepted with other scores: {shown}")
    return tally


def _score(detector: Path, store: Path) -> Any:
    import apood

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded, tokens = apood.load(detector), apood.TokenStore(store)
        return loaded.score_samples(tokens).tolist(), loaded.predict(tokens).tolist(), loaded.p_values(tokens).tolist()


def _try_score(detector: Path, store: Path) -> Any:
    from apood.support.errors import ApoodError

    try:
        return _score(detector, store)
    except ApoodError as error:
        assert str(error).strip(), "an error without a sentence"
        return "refused"


def _damage(rng: random.Random, folder: Path) -> str:
    """Damage one file of `folder`, and return what was done."""
    path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    damages: list[Callable[[random.Random, Path], str]] = [_flip_bits, _cut, _replace_file]
    if path.suffix == ".json":
        damages += [_edit_json] * 5
    return f"{path.name}: {rng.choice(damages)(rng, path)}"


def _flip_bits(rng: random.Random, path: Path) -> str:
    content = bytearray(path.read_bytes())
    if not content:
        return "nothing to flip"
    positions = [rng.randrange(len(content)) for _ in range(rng.choice((1, 1, 3, 30)))]
    for position in positions:
        content[position] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"bits flipped at {positions[:3]}"


def _cut(rng: random.Random, path: Path) -> str:
    content = path.read_bytes()
    end = rng.randrange(len(content) + 1)
    path.write_bytes(content[:end] if rng.random() < 0.7 else content[:end] + bytes(rng.randrange(1, 500)))
    return f"cut at {end} of {len(content)}"


def _replace_file(rng: random.Random, path: Path) -> str:
    kind = rng.choice(("absent", "empty", "folder", "link to nothing", "brackets", "digits"))
    path.unlink()
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to nothing":
        path.symlink_to("nothing")
    elif kind == "brackets":
        path.write_text("[" * 100_000, encoding="utf-8")
    elif kind == "digits":
        path.write_text("9" * 6000, encoding="utf-8")
    return f"replaced: {kind}"


def _edit_json(rng: random.Random, path: Path) -> str:
    """Replace, delete or add one value anywhere in a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    places = list(_places(content))
    container, key = rng.choice(places)
    value = rng.choice(_ODD_VALUES)
    kind = rng.random()
    if kind < 0.7:
        container[key] = value
    elif kind < 0.85:
        del container[key]
    elif isinstance(container, dict):
        container["unknown"] = value
    else:
        container.append(value)
    path.write_text(json.dumps(content), encoding="utf-8")
    return f"JSON edited at {key!r} with {str(value)[:40]!r} ({kind:.2f})"


def _places(content: Any) -> Any:
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(pairs):
        yield content, key
        yield from _places(value)
