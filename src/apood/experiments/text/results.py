"""Results files: the figures of one method on one task in one view, and all that must be the same for the same figures.

A result is a JSON file and, beside it, a safetensors file with the scores and the resampled means. Without the second
file, a report has no intervals for differences between methods.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from apood.detectors.contract.artefact import describe_detector
from apood.evaluation.entry import Entry
from apood.evaluation.fit_cache import describe_code
from apood.evaluation.result import Result
from apood.experiments.text.bootstrap import Floats, Lengths, average, estimate, resample
from apood.support.errors import InputError
from apood.support.files import atomic_file, read_json, sha256_of, write_json

__all__ = [
    "ALL", "EQUAL", "PLAIN", "SCHEMA", "SPLICED", "MethodResult", "compute_figures", "find_result",
    "list_results", "make_file_name", "make_key", "read_result", "refuse_incomplete", "write_result",
]  # fmt: skip

SCHEMA = 1
PLAIN, EQUAL = "plain", "equal_lengths"
ALL, SPLICED = "all", "spliced"

_NEEDED: dict[str, dict[str, type]] = {"task": {"name": str, "view": str, "views": list}, "method": {"label": str}}
_KEYS = {"schema": int, "task": dict, "method": dict, "figures": dict, "means": dict, "costs": dict, "manifest": dict}


@dataclass(frozen=True)
class MethodResult:
    """A result that was read from its file.

    Attributes:
        path: the JSON file.
        content: its content.
        resampled: AUROC and FPR95 `[2, 1 + resamples]` by the sets that they are means over (`all` near and far sets,
            or the `spliced` ones) and by `plain` or `equal_lengths`; without resamples if their file is missing.
        has_scores: whether the file of the scores and resamples is there.
    """

    path: Path
    content: Mapping[str, Any]
    resampled: Mapping[tuple[str, str], Floats]
    has_scores: bool = True

    @property
    def task(self) -> str:
        """The name of the task."""
        return str(self.content["task"]["name"])

    @property
    def row(self) -> tuple[str, str]:
        """The label of the method, and the view; `any` if the method does not depend on it."""
        view = self.content["task"]["view"] if self.content["method"].get("depends_on_view", True) else "any"
        return str(self.content["method"]["label"]), str(view)

    @property
    def aux(self) -> int:
        """The number of AUX texts that the method learns from."""
        return int(self.content["method"].get("aux", 0))

    @property
    def untouched(self) -> bool:
        """Whether no settings were chosen on the corpus."""
        return bool(self.content["task"].get("status") == "untouched")

    def mean(self, of: str, how: str) -> Floats | None:
        """Return resampled AUROC and FPR95, or None if there are no such figures."""
        return self.resampled.get((of, how))


def find_result(out: Path, task: str, view_folder: str, label: str) -> Path:
    """Return the file of a result below `out`."""
    return out / "results" / task / view_folder / f"{make_file_name(label)}.json"


def make_file_name(label: str) -> str:
    """Return the label of a method in the names of its files."""
    return re.sub(r"[^\w.]+", "-", label).strip("-").lower()


def make_key(entry: Entry, described: Mapping[str, Any]) -> str:
    """Return a digest of the method, its code and settings, and all that its figures depend on."""
    detector = entry.make_detector()
    known = [describe_detector(detector), describe_code(detector), entry.aux, described]
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()


def compute_figures(
    result: Result, kinds: Mapping[str, str], lengths: Mapping[str, Lengths]
) -> tuple[dict[str, Any], dict[str, Any], dict[tuple[str, str], Floats]]:
    """Return the figures of each set, their means, and the resampled means.

    Every figure is a list of the value and the ends of its 95% interval, in percent, averaged over the seeds. `kinds`
    says whether a set is near, far or spliced; `lengths` has the tokens of each text, those of ID texts as "test".
    """
    figures: dict[str, Any] = {}
    found: dict[tuple[str, str], dict[str, Floats]] = {}
    for name, kind in kinds.items():
        pairs = [(run.test_scores, run.ood_scores[name]) for run in result.runs]
        figures[name] = {"kind": kind, "texts": len(lengths[name])}
        for how, given in ((PLAIN, None), (EQUAL, (lengths["test"], lengths[name]))):
            drawn = [one for pair in pairs if (one := resample(*pair, name, given)) is not None]
            mean = average(drawn)
            figures[name][how] = None if mean is None else _describe(mean)
            if mean is not None:
                found.setdefault((SPLICED if kind == SPLICED else ALL, how), {})[name] = mean
                if how == PLAIN:
                    figures[name]["auroc_per_seed"] = [round(float(one[0, 0]), 4) for one in drawn]
    means = {key: np.asarray(average(own)) for key, own in found.items()}
    described = {
        of: {how: _describe(means[of, how]) if (of, how) in means else None for how in (PLAIN, EQUAL)}
        for of in (ALL, SPLICED)
    }
    return figures, described, means


def _describe(resampled: Floats) -> dict[str, list[float]]:
    return {
        metric: [round(value, 4) for value in estimate(row)]
        for metric, row in zip(("auroc", "fpr95"), resampled, strict=True)
    }


def write_result(
    path: Path, content: Mapping[str, Any], result: Result, means: Mapping[tuple[str, str], Floats]
) -> None:
    """Write the scores and the resampled means, then the JSON file, which marks a complete result."""
    arrays = {f"resampled.{of}.{how}": own.astype(np.float32) for (of, how), own in means.items()}
    for run in result.runs:
        scores = {"test": run.test_scores, **run.ood_scores}
        arrays |= {f"scores.{run.seed}.{name}": own.astype(np.float32) for name, own in scores.items()}
    beside = path.with_suffix(".safetensors")
    with atomic_file(beside) as temporary:
        temporary.write_bytes(save(arrays))
    write_json(path, {**content, "scores": {"file": beside.name, "sha256": sha256_of(beside)}})


def read_result(path: Path) -> MethodResult:
    """Return a result; raise InputError if the file is not one, or if the scores beside it were changed."""
    try:
        content = read_json(path)
        if not isinstance(content, dict) or not all(isinstance(content.get(key), kind) for key, kind in _KEYS.items()):
            raise InputError(f"{path} is not a result of `apood bench text`.")
        if content["schema"] > SCHEMA:
            raise InputError(f"{path} has schema {content['schema']}, and this apood knows schemas up to {SCHEMA}.")
        refuse_incomplete(path, content, _NEEDED)
        beside = path.parent / Path(content["scores"]["file"]).name
        if not beside.exists():
            return MethodResult(path, content, _read_means(content["means"]), has_scores=False)
        if sha256_of(beside) != content["scores"]["sha256"]:
            raise InputError(f"{beside} is not the file that {path} was written with.")
        arrays = load(beside.read_bytes())
    except OSError as error:
        raise InputError(f"The result {path} cannot be read: {error}.") from error
    except InputError:  # a ValueError, too
        raise
    except (ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise InputError(f"{path} is not a result of `apood bench text`: {error}.") from error
    resampled = {}
    for key, own in arrays.items():
        kind, of, how = (*key.split("."), "", "")[:3]
        if kind == "resampled":
            resampled[of, how] = own.astype(np.float64)
    return MethodResult(path, content, resampled)


def refuse_incomplete(path: Path, content: Mapping[str, Any], needed: Mapping[str, Mapping[str, type]]) -> None:
    """Raise InputError if a part of a result lacks a value, given the values that are needed and their types."""
    for part, keys in needed.items():
        for key, kind in keys.items():
            if not isinstance(content[part].get(key), kind):
                raise InputError(f"{path} is not a result of `apood bench text`: its {part} has no proper {key}.")


def _read_means(means: Mapping[str, Any]) -> dict[tuple[str, str], Floats]:
    """Return the means as if there were no resamples."""
    return {
        (of, how): np.array([[float(own[metric][0])] for metric in ("auroc", "fpr95")])
        for of, both in means.items()
        for how, own in both.items()
        if own is not None
    }


def list_results(folders: Sequence[Path]) -> list[MethodResult]:
    """Return all results below the folders."""
    paths = [
        path
        for folder in folders
        for path in sorted((folder / "results" if (folder / "results").is_dir() else folder).rglob("*.json"))
    ]
    if not paths:
        raise InputError(f"There are no results below {', '.join(map(str, folders))}.")
    return [read_result(path) for path in paths]
