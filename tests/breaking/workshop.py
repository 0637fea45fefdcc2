"""What all attacks share: good material to damage, and processes that are watched."""

import contextlib
import json
import os
import pickle
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

PATIENCE = 20.0
"""Seconds after which a process counts as hanging, on a machine that has a core for it."""

MANY = 400
"""The number of texts in many.txt."""


@dataclass
class Tally:
    """Counts of what happened, and a description of everything that must not happen."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def note(self, outcome: str, failure: str | None = None) -> None:
        """Count an outcome, and keep the description of a failure."""
        self.counts[outcome] += 1
        if failure is not None:
            self.failures.append(failure)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.counts + other.counts, self.failures + other.failures)

    def __str__(self) -> str:
        return ", ".join(f"{outcome} {count:,}" for outcome, count in sorted(self.counts.items()))


_MANIFEST = """
id_train = "texts.jsonl"
id_test = "others.jsonl"
ood = {odd = "odd.jsonl"}
settings = {train = 30, evaluated = 15, max_tokens = 8, steps = 3}
"""

_CORPORA = """
limits = {train = 100, evaluated = 30}
[corpora.small]
status = "untouched"
id_train = "many.txt"
id_test = "others.jsonl"
[corpora.small.ood]
odd = {input = "odd.jsonl", kind = "far"}
"""


@dataclass(frozen=True)
class Material:
    """Good inputs below one folder: texts, pairs, sounds, scores, a tiny model, stores, a calibrated detector."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> "Material":
        """Make everything below `folder`."""
        from tiny_models import WORDS, save_model

        import apood

        rng = np.random.default_rng(0)
        folder.mkdir(parents=True, exist_ok=True)
        lines = [" ".join(rng.choice(WORDS, rng.integers(3, 12))) for _ in range(60)]
        (folder / "texts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        many = "".join(f"{lines[i % len(lines)]} word{i % 40}\n" for i in range(MANY))
        (folder / "many.txt").write_text(many, encoding="utf-8")
        (folder / "texts.csv").write_text("text\n" + "\n".join(lines) + "\n", encoding="utf-8")
        rows = {
            "texts": [{"text": line} for line in lines],
            "others": [{"text": f"{line} {line}"} for line in lines[30:]],
            "odd": [{"text": " ".join(line.split()[:2])} for line in lines],
            "pairs": [{"source": line, "target": line[::-1]} for line in lines],
        }
        for name, records in rows.items():
            content = "".join(json.dumps(record) + "\n" for record in records)
            (folder / f"{name}.jsonl").write_text(content, encoding="utf-8")
        (folder / "apood-data.toml").write_text(_MANIFEST, encoding="utf-8")
        (folder / "corpora.toml").write_text(_CORPORA, encoding="utf-8")
        (folder / "tokens.txt").write_text("a-token-of-many-characters\n", encoding="utf-8")
        scores = rng.normal(size=40).tolist()
        (folder / "scores.jsonl").write_text("".join(f'{{"score": {score}}}\n' for score in scores), encoding="utf-8")
        reviewed = "".join(f"{score},ID,1\n" for score in scores)
        (folder / "reviewed.csv").write_text(f"score,verdict,probability\n{reviewed}", encoding="utf-8")
        waves = rng.integers(-99, 99, (12, 4000)).astype(np.int16)
        np.savez(folder / "sounds.npz", audio=waves, sr=8000, label=np.array(["fan", "pump"] * 6))
        save_model("bert", folder / "model")
        encoder = apood.TextEncoder(folder / "model", device="cpu")
        for name, part in (("store", lines[:40]), ("held-out", lines[40:])):
            with apood.TokenStoreWriter(
                folder / name, dim=encoder.dim, encoder=encoder.identity, shard_bytes=4000
            ) as writer:
                writer.append(encoder.encode(part))
        detector = apood.KNN().fit(apood.TokenStore(folder / "store"))
        detector.calibrate(apood.TokenStore(folder / "held-out"), accept=0.9).save(folder / "detector")
        return cls(folder)


@dataclass(frozen=True)
class Ending:
    """How a watched process ended.

    Attributes:
        code: its exit code; None if it was killed after its time was over.
        value: what the function returned.
        printed: what it printed.
        peak: the most memory that it had, in bytes.
    """

    code: int | None
    value: Any
    printed: str
    peak: int


def describe_refusal(printed: str) -> str:
    """Return the name of an outcome: a command was refused, or could not run because a package is missing."""
    missing = re.search(r"needs the package (\w+)", printed)
    return f"without {missing[1]}" if missing else "refused"


def import_heavy() -> None:
    """Import what commands import, so that every fork has it."""
    import transformers  # noqa: F401

    with contextlib.suppress(ImportError):
        import matplotlib.font_manager  # noqa: F401 - it looks for all fonts of the machine


def measure_memory() -> int:
    """Return the most memory that this process had, in bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def watch(function: Callable[[], Any], patience: float | None = None) -> Ending:
    """Run `function` in a forked process, and return how it ended.

    The fork has imported what the parent has, so that it starts at once. Its output is collected in a file. It is
    killed after `patience`; by default after `PATIENCE`, or later where more processes run than there are cores.
    """
    if patience is None:
        patience = PATIENCE * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as result:
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            for stream in (1, 2):
                os.dup2(printed.fileno(), stream)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            code = 0
            try:
                import torch

                torch.set_num_threads(1)  # threads of the parent do not exist in a fork
                pickle.dump(function(), os.fdopen(os.dup(result.fileno()), "wb"))
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        with contextlib.suppress(OSError):  # the child does the same; whoever is first
            os.setpgid(child, child)
        code, peak = _wait(child, patience)
        printed.seek(0)
        result.seek(0)
        content = result.read()
        return Ending(code, pickle.loads(content) if content else None, printed.read().decode("utf-8", "replace"), peak)


def _wait(child: int, patience: float) -> tuple[int | None, int]:
    end = time.monotonic() + patience
    pause = 0.002
    while time.monotonic() < end:
        found, status, usage = os.wait4(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)
    os.killpg(child, signal.SIGKILL)
    _, _, usage = os.wait4(child, 0)
    return None, usage.ru_maxrss * 1024
