"""Damaged detectors, stores, model folders, checkpoints and caches: each is refused, or the damage changes nothing.

A mutation is harmful if what was damaged opens without an error, and scores or decisions are others.
"""

import hashlib
import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workshop import Material, Tally, import_heavy, watch

__all__ = ["break_files"]

_ODD_VALUES: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 10**400, 0.5, "NaN", "", "é", "../x", [], {}, [[]], [1, "a"], {"a": 1},
    "__proto__", 1e308, -0.0, "x" * 10_000,
]  # fmt: skip


def break_files(count: int, seed: int, folder: Path) -> Tally:
    """Damage `count` copies of what apood reads, and tally what became of each."""
    import_heavy()
    material, rng, tally = Material.make(folder / "good"), random.Random(seed), Tally()
    _add_material(material.folder)
    expected = {what: _try(judge, material.folder) for what, judge in _JUDGES.items()}
    place = folder / "damaged"
    for number in range(count):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(material.folder, place)
        what = list(_JUDGES)[number % len(_JUDGES)]
        forged = what == "detector" and rng.random() < 0.4
        damage = _forge(rng, place / what) if forged else _damage(rng, place / what)
        ending = watch(lambda judge=_JUDGES[what]: _try(judge, place))
        shown = f"mutation {number} of {what}: {damage}"
        if ending.code is None:
            tally.note("hangs", f"hangs: {shown}")
        elif ending.code != 0 or ending.value is None:
            tally.note("tracebacks", f"{shown}\n{ending.printed[-600:]}")
        elif ending.value == "refused":
            tally.note("refused")
        elif ending.value == expected[what]:
            tally.note("harmless")
        elif forged:  # whoever can write a hash can write another detector
            tally.note("forged")
        else:
            tally.note("harmful", f"accepted with other results: {shown}")
    return tally


def _add_material(good: Path) -> None:
    """Add the checkpoint of a fit, and a cache with the fit of another and its scores."""
    for judge in (_fit_from_checkpoint, _score_from_cache):
        _try(judge, good)


def _score_store(place: Path) -> Any:
    import apood

    loaded, tokens = apood.load(place / "detector"), apood.TokenStore(place / "held-out")
    return loaded.score_samples(tokens).tolist(), loaded.predict(tokens).tolist(), loaded.p_values(tokens).tolist()


def _score_texts(place: Path) -> Any:
    import apood
    from apood.encoders.opening import reopen_encoder

    loaded = apood.load(place / "detector")
    encoder = reopen_encoder(loaded.encoder_, str(place / "model"), channels=loaded.requires)
    texts = (place / "texts.txt").read_text(encoding="utf-8").splitlines()[:5]
    return loaded.score_samples(encoder.encode(texts)).tolist()


def _fit_from_checkpoint(place: Path) -> Any:
    import apood

    checkpoint = apood.Checkpoint(place / "checkpoint" / "fit.checkpoint", every_seconds=0)
    tokens = apood.TokenStore(place / "store")
    return apood.APOOD(steps=4, heads=2, device="cpu").fit(tokens, checkpoint=checkpoint).queries_.tolist()


def _score_from_cache(place: Path) -> Any:
    import apood
    from apood.evaluation.fit_cache import CachedFit

    fit = CachedFit(apood.KNN(), apood.TokenStore(place / "store"), None, place / "cache")
    return fit.score(apood.TokenStore(place / "held-out"))[0].tolist()


_JUDGES: dict[str, Callable[[Path], Any]] = {
    "detector": _score_store,
    "held-out": _score_store,
    "model": _score_texts,
    "checkpoint": _fit_from_checkpoint,
    "cache": _score_from_cache,
}
"""What is damaged, and the result that it decides."""


def _try(judge: Callable[[Path], Any], place: Path) -> Any:
    from apood.support.errors import ApoodError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return judge(place)
        except (ApoodError, OSError) as error:  # the latter name the file, as commands do
            assert str(error).strip(), "an error without a sentence"
            return "refused"


def _forge(rng: random.Random, folder: Path) -> str:
    """Edit the configuration of a detector, and write the hash that belongs to it."""
    path = folder / "config.json"
    what = _edit_json(rng, path)
    content = json.loads(path.read_text(encoding="utf-8"))
    content.pop("config_sha256", None)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(content | {"config_sha256": digest}), encoding="utf-8")
    return f"forged: {what}"


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
