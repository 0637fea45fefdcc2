"""Commands that are killed at random moments: they lose little, and end like undisturbed ones when they run again."""

import hashlib
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from cli_calls import TINY_CLASSIFIER, TINY_TRANSLATOR, call, fill
from workshop import MANY, Ending, Material, Tally, describe_refusal, import_heavy, watch

__all__ = ["VARIANTS", "break_commands"]

INTERVAL = 1.0
"""Seconds between two commits of `embed` and two checkpoints of a training."""

_PATIENCE = 300.0  # seconds for a command that is not killed
_SLOW_SECONDS = 4.0  # how long the slowed work of a command takes, about
_SLOW_WRITE = 0.03  # seconds before and after each step of a write, so that kills meet them
_STEPS = 200
_CODES = (0, 3)  # 3: `apood watch` and its alarm

_VARYING = (
    "command",
    "finished",
    "made",
    "facts",
    "config_sha256",
    "minutes",
)  # keys of JSON that depend on time or place

Log = Callable[[Any], None]


@dataclass(frozen=True)
class Victim:
    """A command that writes something.

    Attributes:
        words: the command; G stands for the good material, O for what it writes.
        again: the option that continues it after a kill, if it needs one.
        observe: a function that slows the command down, where it would end too soon, and logs its work.
        count_kept: how much of the logged work is kept on disk; None if the log has the names of finished fits.
        find_rest: returns the command that does what is missing after a kill, or None; by default the same one.
    """

    words: str
    again: str = ""
    observe: Callable[[Log], None] | None = None
    count_kept: Callable[[Path], int] | None = None
    find_rest: Callable[[str, Path, Path], str | None] | None = None


def _observe_embed(log: Log) -> None:
    """Log the number of encoded texts, and commit every `INTERVAL`."""
    from apood.encoders import embed
    from apood.encoders.text.encoder import TextEncoder

    run, done = TextEncoder._run_batch, 0

    def run_slowly(self: Any, sources: Any, targets: Any) -> Any:
        nonlocal done
        time.sleep(len(sources) * _SLOW_SECONDS / MANY)
        done += len(sources)
        log(done)
        return run(self, sources, targets)

    TextEncoder._run_batch = run_slowly  # type: ignore[method-assign]
    embed.embed_to_store.__kwdefaults__["commit_seconds"] = INTERVAL


def _observe_steps(log: Log) -> None:
    """Log the number of steps of AP-OOD's training, and write a checkpoint every `INTERVAL`."""
    from apood.detectors.ap_ood.training import Training
    from apood.fitting.optimise import Checkpoint

    take_step = Training.__call__

    def take_slowly(self: Any, step: int) -> Any:
        time.sleep(_SLOW_SECONDS / _STEPS)
        log(step)
        return take_step(self, step)

    Training.__call__ = take_slowly  # type: ignore[method-assign]
    Checkpoint.__init__.__defaults__ = (INTERVAL,)


def _observe_backbone(log: Log) -> None:
    """Log the number of steps of a backbone's training, in all its stages."""
    from apood.backbones import training_loop

    show, done = training_loop._show, 0

    def show_slowly(*facts: Any) -> None:
        nonlocal done
        time.sleep(_SLOW_SECONDS / _STEPS)
        done += 1
        log(done)
        show(*facts)

    training_loop._show = show_slowly


def _observe_fits(log: Log) -> None:
    """Log the folder of each finished fit."""
    from apood.evaluation.fit_cache import CachedFit

    fit = CachedFit._fit

    def fit_and_log(self: Any) -> Any:
        detector = fit(self)
        log(self.folder.name)
        return detector

    CachedFit._fit = fit_and_log  # type: ignore[method-assign]


def _observe_rows(log: Log) -> None:  # noqa: ARG001
    """Read scores slowly."""
    from apood.cli.watch import _Watcher

    add = _Watcher.add

    def add_slowly(self: Any, score: float) -> None:
        time.sleep(0.02)
        add(self, score)

    _Watcher.add = add_slowly  # type: ignore[method-assign]


def _slow_writes() -> None:
    """Pause before and after each step of a write."""
    from apood.support import files

    def slow_down(write: Callable[..., None]) -> Callable[..., None]:
        def write_slowly(*paths: Path) -> None:
            time.sleep(_SLOW_WRITE)
            write(*paths)
            time.sleep(_SLOW_WRITE)

        return write_slowly

    for name in ("_flush_file", "_flush_folder", "_replace_folder"):
        setattr(files, name, slow_down(getattr(files, name)))


def _count_stored(out: Path) -> int:
    import apood

    return len(apood.TokenStore(out)) if (out / "index.json").exists() else 0


def _count_stored_by_build(out: Path) -> int:
    building = out.with_name(f"{out.name}.building")
    return MANY if out.exists() else sum(map(_count_stored, building.glob("*/store")))


def _count_stored_in_cache(out: Path) -> int:
    return sum(map(_count_stored, out.with_name(f"{out.name}.cache").glob("*/store")))


def _count_steps(out: Path) -> int:
    """Return the number of steps in the checkpoints of a command; all if it has finished."""
    from safetensors import safe_open

    names = (f"{out.name}.checkpoint*", f"{out.name}.building/checkpoint*")
    files = [path for name in names for path in out.parent.glob(name) if ".partial-" not in path.name]
    if out.exists():
        return 2 * _STEPS
    steps = 0
    for file in files:
        with safe_open(file, "pt") as content:
            steps += int(content.metadata()["step"])
    return steps


def _find_unwatched(words: str, good: Path, out: Path) -> str | None:
    """Return the command that watches the rows that are not part of the state."""
    state = out / "state.json"
    seen = json.loads(state.read_text(encoding="utf-8"))["inputs"] if state.exists() else 0
    rows = (good / "scores.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (good / "rest.jsonl").write_text("".join(rows[seen:]), encoding="utf-8")
    return words.replace("scores.jsonl", "rest.jsonl") if rows[seen:] else None


def _find_unwritten(words: str, good: Path, out: Path) -> str | None:  # noqa: ARG001
    """Return the command if it left nothing: its output is complete or absent, and it refuses to write it again."""
    return None if out.exists() and any(out.iterdir()) else words


_TRAINED = f"--method ap-ood --set steps={_STEPS} --set device=cpu"
_VICTIMS = {
    "embed": Victim(
        "embed G/many.txt --model G/model --out O --dtype float32", "--resume", _observe_embed, _count_stored
    ),
    "fit": Victim(
        f"fit G/store --out O {_TRAINED} --checkpoint-seconds {INTERVAL}", "--force", _observe_steps, _count_steps
    ),
    "fit of texts": Victim(
        "fit G/many.txt --model G/model --cache O.cache --out O --method knn",
        "--force",
        _observe_embed,
        _count_stored_in_cache,
    ),
    "build": Victim(
        "build G/many.txt --model G/model --out O --method knn", "--force", _observe_embed, _count_stored_by_build
    ),
    "build with a training": Victim(
        f"build G/texts.jsonl --model G/model --out O {_TRAINED} --accept 0.8", "--force", _observe_steps, _count_steps
    ),
    "train translator": Victim(
        f"train translator G/pairs.jsonl {TINY_TRANSLATOR} --steps {_STEPS} --checkpoint-seconds {INTERVAL} --out O",
        "--resume",
        _observe_backbone,
        _count_steps,
    ),
    "train audio-classifier": Victim(
        f"train audio-classifier G/sounds.npz {TINY_CLASSIFIER} --pretraining-steps {_STEPS // 2} --steps {_STEPS // 2}"
        f" --checkpoint-seconds {INTERVAL} --out O",
        "--resume",
        _observe_backbone,
        _count_steps,
    ),
    "recalibrate": Victim("recalibrate G/detector G/reviewed.csv --out O --random-sample", "--force"),
    "calibrate": Victim("calibrate O G/held-out --accept 0.8"),
    "score": Victim("score G/detector G/texts.jsonl --out O/scores.csv", "--force"),
    "explain": Victim("explain G/detector G/odd.jsonl --format json --out O/why.jsonl", "--force"),
    "report": Victim("report G/detector --id G/held-out --ood x=G/odd.jsonl --cache O.cache --out O.html", "--force"),
    "watch": Victim(
        "watch G/detector G/scores.jsonl --state O/state.json --every 7",
        observe=_observe_rows,
        find_rest=_find_unwatched,
    ),
    "evaluate": Victim("evaluate G/detector --id G/texts.jsonl --ood x=G/odd.jsonl --cache O.cache"),
    "store merge": Victim("store merge G/store G/held-out --out O", find_rest=_find_unwritten),
    "store split": Victim("store split G/store --part a=0.5 --part b=0.4 --out O", find_rest=_find_unwritten),
    "compare": Victim(
        "compare --id G/store --ood x=G/held-out --method knn --method mahalanobis --method length --splits 2 --out O",
        observe=_observe_fits,
    ),
    "select": Victim("select G/store --method knn --grid k=1,2 --aux G/held-out --jobs 1 --out O"),
    "bench": Victim("bench score-ablation --data G --model G/model --seeds 1 --out O", observe=_observe_fits),
    "bench text": Victim(
        "bench text run G/corpora.toml --model tiny=G/model --method mahalanobis --layers last --out O",
        observe=_observe_fits,
    ),
}

VARIANTS = tuple((name,) for name in _VICTIMS)


def break_commands(count: int, seed: int, folder: Path, name: str) -> Tally:
    """Kill a command `count` times below `folder`, each with SIGKILL, and tally what became of it.

    Runs that end before their moment has come do not count.
    """
    import_heavy()
    good, rng, tally = Material.make(folder / "good").folder, random.Random(f"{seed} {name}"), Tally()
    try:
        seconds, expected = _run_undisturbed(name, good, folder / "undisturbed")
    except RuntimeError as error:
        if (outcome := describe_refusal(str(error))) == "refused":
            raise
        tally.note(f"{name} {outcome}")
        return tally
    for _ in range(4 * count):
        if tally.counts["killed"] == count:
            break
        place, begun = folder / "killed", time.monotonic()
        shutil.rmtree(place, ignore_errors=True)
        if not _attack(name, good, place, rng.uniform(0, seconds), expected, tally):
            seconds = min(seconds, time.monotonic() - begun)  # it is faster than before
    return tally


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
    _check_ending(_run(_VICTIMS[name], good, out, place.with_suffix(".log"), _PATIENCE))
    return time.monotonic() - begun, _describe(place)


def _run(victim: Victim, good: Path, out: Path, log: Path, patience: float) -> Ending:
    """Run a command slowly and observe it; kill it after `patience`."""

    def call_observed() -> None:
        file = log.open("a")  # it stays open as long as the process lives
        _slow_writes()
        if victim.observe is not None:
            victim.observe(lambda work: print(time.monotonic(), work, file=file, flush=True))
        _call(victim.words, good, out)

    return watch(call_observed, patience)


def _call(words: str, good: Path, out: Path) -> None:
    call([fill(word, good, str(out)) for word in words.split()], out.parent)


def _check_ending(ending: Ending) -> None:
    if ending.code not in _CODES:
        raise RuntimeError(f"exit {ending.code}: {ending.printed[-700:]}")


def _attack(name: str, good: Path, place: Path, moment: float, expected: Any, tally: Tally) -> bool:
    """Run a command, kill it at a moment, run it again, and compare what it left with what is expected.

    Return whether it was killed.
    """
    victim, out, log = _VICTIMS[name], _prepare(name, good, place), place.with_suffix(".log")
    log.write_bytes(b"")
    ending = _run(victim, good, out, log, moment)
    killed = time.monotonic()
    what = f"{name}, killed after {moment:.2f} s"
    if ending.code not in (None, *_CODES):
        tally.note("failed", f"{what}: it ended by itself with {ending.code}: {ending.printed[-500:]}")
        return False
    if ending.code is None:
        tally.note("killed")
    try:
        if ending.code is None:
            if victim.count_kept is not None:
                _check_kept(log, killed, victim.count_kept(out))
            _finish(victim, good, out, log)
        found = _describe(place)
        if changed := [key for key in expected.keys() | found.keys() if not _are_same(found, expected, key)]:
            raise RuntimeError(f"it ended with another result: {sorted(changed)}")
    except Exception as error:  # whatever it is, the command did not survive the kill
        tally.note("broken", f"{what}: {error}")
    else:
        tally.note("continued" if ending.code is None else "undisturbed")
    return ending.code is None


def _finish(victim: Victim, good: Path, out: Path, log: Path) -> None:
    """Run what is missing after a kill."""
    rest = f"{victim.words} {victim.again}" if victim.find_rest is None else victim.find_rest(victim.words, good, out)
    if rest is None:
        return
    if victim.observe is _observe_fits:
        _check_ending(_run(replace(victim, words=rest), good, out, log, _PATIENCE))
        _check_no_fit_twice(log)
    else:
        _check_ending(watch(lambda: _call(rest, good, out), _PATIENCE))


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
        elif path.is_dir() or path.name.endswith(".lock") or (path.parent / "index.json").exists():
            continue  # a process that is killed cannot delete its lock, which locks nothing any more
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
