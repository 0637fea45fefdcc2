"""Commands that are killed at random moments: they lose little, and end like undisturbed ones when they run again."""

import hashlib
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cli_calls import call
from workshop import Material, Tally, describe_refusal, import_heavy, watch

__all__ = ["break_commands"]

INTERVAL = 1.0
"""Seconds between two commits of `embed` and two checkpoints of a training."""

_PATIENCE = 120.0  # seconds for a command that is not killed
_SLOW_SECONDS = 4.0  # how long the slowed commands take, about
_TEXTS = 400
_STEPS = 200
_MANIFEST = """
id_train = "texts.jsonl"
id_test = "others.jsonl"
ood = {odd = "odd.jsonl"}
settings = {train = 30, evaluated = 15, max_tokens = 8, steps = 3}
"""

_VARYING = ("command", "finished", "facts", "config_sha256")  # keys of JSON files that depend on time or place

Log = Callable[[Any], None]


@dataclass(frozen=True)
class Victim:
    """A command that writes something.

    Attributes:
        words: the command; G stands for the good material, O for what it writes.
        again: the option that continues it after a kill, if it needs one.
        observe: a function that slows the command down, where it would end too soon, and logs its work.
        count_kept: how much of the logged work is kept on disk; None if the log has the names of finished fits.
    """

    words: str
    again: str = ""
    observe: Callable[[Log], None] | None = None
    count_kept: Callable[[Path], int] | None = None


def _observe_embed(log: Log) -> None:
    """Log the number of encoded texts, and commit every `INTERVAL`."""
    from apood.encoders import embed
    from apood.encoders.text.encoder import TextEncoder

    run, done = TextEncoder._run_batch, 0

    def run_slowly(self: Any, sources: Any, targets: Any) -> Any:
        nonlocal done
        time.sleep(len(sources) * _SLOW_SECONDS / _TEXTS)
        done += len(sources)
        log(done)
        return run(self, sources, targets)

    TextEncoder._run_batch = run_slowly  # type: ignore[method-assign]
    embed.embed_to_store.__kwdefaults__["commit_seconds"] = INTERVAL


def _observe_steps(log: Log) -> None:
    """Log the number of steps of AP-OOD's training."""
    from apood.detectors.ap_ood.training import Training

    take_step = Training.__call__

    def take_slowly(self: Any, step: int) -> Any:
        time.sleep(_SLOW_SECONDS / _STEPS)
        log(step)
        return take_step(self, step)

    Training.__call__ = take_slowly  # type: ignore[method-assign]


def _observe_fits(log: Log) -> None:
    """Log the folder of each finished fit."""
    from apood.evaluation.fit_cache import CachedFit

    fit = CachedFit._fit

    def fit_and_log(self: Any) -> Any:
        detector = fit(self)
        log(self.folder.name)
        return detector

    CachedFit._fit = fit_and_log  # type: ignore[method-assign]


def _count_stored(out: Path) -> int:
    import apood

    return len(apood.TokenStore(out)) if (out / "index.json").exists() else 0


def _count_steps(out: Path) -> int:
    from safetensors import safe_open

    checkpoint = out.with_name(f"{out.name}.checkpoint")
    if not checkpoint.exists():
        return _STEPS if out.exists() else 0
    with safe_open(checkpoint, "pt") as file:
        return int(file.metadata()["step"])


_VICTIMS = {
    "embed": Victim(
        "embed G/many.txt --model G/model --out O --dtype float32", "--resume", _observe_embed, _count_stored
    ),
    "fit": Victim(
        f"fit G/store --out O --method ap-ood --set steps={_STEPS} --set device=cpu --checkpoint-seconds {INTERVAL}",
        "--force",
        _observe_steps,
        _count_steps,
    ),
    "build": Victim("build G/texts.jsonl --model G/model --out O --method knn --accept 0.8", "--force"),
    "recalibrate": Victim("recalibrate G/detector G/reviewed.csv --out O --random-sample", "--force"),
    "calibrate": Victim("calibrate O G/held-out --accept 0.8"),
    "score": Victim("score G/detector G/texts.jsonl --out O/scores.csv", "--force"),
    "compare": Victim(
        "compare --id G/store --ood x=G/held-out --method knn --method mahalanobis --method length --splits 2 --out O",
        observe=_observe_fits,
    ),
    "bench": Victim("bench score-ablation --data G --model G/model --seeds 1 --out O", observe=_observe_fits),
    "select": Victim("select G/store --method knn --grid k=1,2 --aux G/held-out --jobs 1 --out O"),
}


def break_commands(count: int, seed: int, folder: Path) -> Tally:
    """Kill commands `count` times below `folder`, each with SIGKILL, and tally what became of them.

    Commands that end before their moment has come do not count.
    """
    import_heavy()
    material, rng, tally = Material.make(folder / "good"), random.Random(seed), Tally()
    _add_material(material.folder)
    undisturbed: dict[str, tuple[float, Any]] = {}
    missing: set[str] = set()  # commands whose packages are not installed
    for number in range(4 * count):
        if tally.counts["killed"] == count:
            break
        name = list(_VICTIMS)[number % len(_VICTIMS)]
        victim = _VICTIMS[name]
        if name in missing:
            continue
        if name not in undisturbed:
            try:
                undisturbed[name] = _run_undisturbed(name, material.folder, folder / "undisturbed" / name)
            except RuntimeError as error:
                if (outcome := describe_refusal(str(error))) == "refused":
                    raise
                missing.add(name)
                tally.note(f"{name} {outcome}")
                continue
        seconds, expected = undisturbed[name]
        place = folder / "killed"
        shutil.rmtree(place, ignore_errors=True)
        begun = time.monotonic()
        if not _attack(name, victim, material.folder, place, rng.uniform(0, seconds), expected, tally):
            undisturbed[name] = min(seconds, time.monotonic() - begun), expected  # it is faster than before
    return tally


def _add_material(good: Path) -> None:
    lines = (good / "texts.txt").read_text(encoding="utf-8").splitlines()
    (good / "many.txt").write_text(
        "".join(f"{lines[i % len(lines)]} word{i % 40}\n" for i in range(_TEXTS)), encoding="utf-8"
    )
    for name, part in (("others", lines[30:]), ("odd", [" ".join(line.split()[:2]) for line in lines])):
        (good / f"{name}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in part), encoding="utf-8")
    (good / "apood-data.toml").write_text(_MANIFEST, encoding="utf-8")


def _prepare(name: str, good: Path, place: Path) -> Path:
    """Return where the command writes; a calibration changes a detector that is there already."""
    place.mkdir(parents=True)
    out = place / "out"
    if name == "calibrate":
        shutil.copytree(good / "detector", out)
    return out


def _run_undisturbed(name: str, good: Path, place: Path) -> tuple[float, Any]:
    """Return the seconds that a command takes while it is observed, and its result."""
    out, begun = _prepare(name, good, place), time.monotonic()
    _finish(_VICTIMS[name].words, good, out)
    seconds = time.monotonic() - begun
    return _SLOW_SECONDS if _VICTIMS[name].count_kept else seconds, _describe(place)


def _finish(words: str, good: Path, out: Path, prepare: Callable[[], None] | None = None) -> None:
    ending = watch(lambda: _call(words, good, out, prepare), _PATIENCE)
    if ending.code != 0:
        raise RuntimeError(f"exit {ending.code}: {words}: {ending.printed[-700:]}")


def _attack(name: str, victim: Victim, good: Path, place: Path, moment: float, expected: Any, tally: Tally) -> bool:
    """Run a command, kill it at a moment, run it again, and compare what it left with what is expected.

    Return whether it was killed.
    """
    out, log = _prepare(name, good, place), place.with_suffix(".log")
    log.write_bytes(b"")

    def observe() -> None:
        file = log.open("a")  # it stays open as long as the process lives
        if victim.observe is not None:
            victim.observe(lambda work: print(time.monotonic(), work, file=file, flush=True))

    ending = watch(lambda: _call(victim.words, good, out, observe), moment)
    killed = time.monotonic()
    what = f"{name}, killed after {moment:.2f} s"
    if ending.code not in (None, 0):
        tally.note("failed", f"{what}: it ended by itself with {ending.code}: {ending.printed[-500:]}")
        return False
    if ending.code is None:
        tally.note("killed")
    try:
        if victim.count_kept is not None and ending.code is None:
            _check_kept(log, killed, victim.count_kept(out))
        if ending.code is None:
            _finish(f"{victim.words} {victim.again}", good, out, observe if victim.count_kept is None else None)
        if victim.count_kept is None:
            _check_no_fit_twice(log)
        found = _describe(place)
        if changed := [key for key in expected.keys() | found.keys() if not _are_same(found, expected, key)]:
            raise RuntimeError(f"it ended with another result: {sorted(changed)}")
    except Exception as error:  # whatever it is, the command did not survive the kill
        tally.note("broken", f"{what}: {error}")
    else:
        tally.note("continued" if ending.code is None else "undisturbed")
    return ending.code is None


def _call(words: str, good: Path, out: Path, prepare: Callable[[], None] | None) -> None:
    if prepare is not None:
        prepare()
    given = [word.replace("G/", f"{good}/") if word != "G" else str(good) for word in words.split()]
    call([str(out) + word[1:] if word == "O" or word.startswith("O/") else word for word in given], out.parent)


def _check_kept(log: Path, killed: float, kept: int) -> None:
    """Raise an error if work that was done two intervals before the kill is not on disk."""
    lines = [line.split() for line in log.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    due = max((int(work) for at, work in lines if float(at) < killed - 2 * INTERVAL), default=0)
    if kept < due:
        raise RuntimeError(f"{due} were done {2 * INTERVAL:g} s before the kill, and {kept} are kept")


def _check_no_fit_twice(log: Path) -> None:
    fits = Counter(line.split()[1] for line in log.read_text(encoding="utf-8").splitlines() if " " in line)
    if twice := [name for name, times in fits.items() if times > 1]:
        raise RuntimeError(f"finished fits were made again: {twice}")


def _describe(place: Path) -> dict[str, Any]:
    """Return the names of all files, and the content of those that depend neither on the time nor on the place.

    A store is one thing, because its shards depend on the time.
    """
    import apood

    found: dict[str, Any] = {}
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place).as_posix()
        if (path / "index.json").exists():
            batch = apood.TokenStore(path).select(slice(None))
            found[name] = [batch.offsets.numpy(), batch.values.float().numpy()]
        elif path.is_dir() or (path.parent / "index.json").exists():
            continue
        elif path.suffix == ".json":
            found[name] = _drop_varying(json.loads(path.read_text(encoding="utf-8")))
        else:
            steady = path.suffix in (".csv", ".safetensors") and not path.name.startswith("scores-")
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if steady else None
    return found


def _are_same(found: dict[str, Any], expected: dict[str, Any], name: str) -> bool:
    """Return whether a file is the same; tokens may differ by rounding, because texts were encoded in other batches."""
    if name not in found or name not in expected:
        return False
    if not isinstance(expected[name], list) or not isinstance(expected[name][0], np.ndarray):
        return bool(found[name] == expected[name])
    (own, values), (others, expected_values) = found[name], expected[name]
    return np.array_equal(own, others) and np.allclose(values, expected_values, atol=1e-4)


def _drop_varying(content: Any) -> Any:
    """Return JSON without times and without the command line, which names the place."""
    if isinstance(content, dict):
        return {k: _drop_varying(value) for k, value in content.items() if "second" not in k and k not in _VARYING}
    return [_drop_varying(value) for value in content] if isinstance(content, list) else content
