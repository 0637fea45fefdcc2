"""Checks a results file: fits and scores its method again, and compares all that the file states."""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from apood.evaluation.entry import Entry
from apood.experiments.text.bootstrap import Floats, estimate
from apood.experiments.text.measure import Assignment
from apood.experiments.text.results import MethodResult, read_result, refuse_incomplete
from apood.experiments.text.runner import TextBenchOptions, prepare
from apood.experiments.text.tasks import parse_view
from apood.support.errors import InputError
from apood.support.provenance import device_name

__all__ = ["check_result", "compare_results"]

_NEEDED: dict[str, dict[str, type]] = {
    "task": {"model": str, "mode": str, "corpus": str},
    "method": {"method": str, "aux": int},
    "manifest": {"texts": dict, "model": str, "seeds": int},
}
_PERCENTAGES = {
    "auroc": ("auroc", "the lower end of auroc", "the upper end of auroc"),
    "fpr95": ("fpr95", "the lower end of fpr95", "the upper end of fpr95"),
}
_NAMES = {"equal_lengths": "equal lengths", "auroc_per_seed": "auroc per seed", "artefact_bytes": "bytes"}
_PLACES = ("model", "revision")  # where a model was read from; its fingerprint says which it is
_BYTES = 0.05  # a saved detector names versions, and its numbers have more digits or fewer


def check_result(path: Path, options: TextBenchOptions, tolerance: float) -> list[str]:
    """Fit and score the method of a results file again, and return one sentence per difference.

    The texts and the model must be those of the file; raise InputError if they are not. Token stores in `options.out`
    are reused, fits are not.
    """
    kept = read_result(path)
    refuse_incomplete(path, kept.content, _NEEDED)
    facts, method, manifest = (kept.content[part] for part in _NEEDED)
    known = [one for one in options.models if one.partition("=")[0] == facts["model"]]
    if not known:
        raise InputError(f"{path} was measured with the model {facts['model']}: give it as {facts['model']}=FOLDER.")
    _refuse_other_device(path, method, manifest)
    wanted = replace(
        options,
        models=known,
        modes=(facts["mode"],),
        views=tuple(parse_view(str(view)) for view in facts["views"]),
        corpora=(facts["corpus"],),
        methods=(method["method"],),
        seeds=manifest["seeds"],
    )
    prepared = prepare(wanted)
    assignment = next((one for one in prepared.assignments if one.task.view_name == facts["view"]), None)
    if assignment is None:
        raise InputError(f"{path} contradicts itself: its view {facts['view']!r} is none of its views.")
    _refuse_other_inputs(path, manifest, assignment)
    measurer = replace(prepared.measurer, with_aux=method["aux"] != 0, fresh=True)
    again = measurer.measure_again(assignment, method["label"])
    differences = compare_results(kept, again, tolerance)
    origins = [_describe_origin(one.content["manifest"]) for one in (kept, again)]
    if differences and origins[0] != origins[1]:
        differences.append(f"The file is from {origins[0]}; measured now with {origins[1]}.")
    return differences


def _refuse_other_device(path: Path, method: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    """Raise InputError for a method that takes a device if the file is from the other kind: CPU or GPU.

    AP-OOD, and so the default, has more heads and queries on a GPU, and other figures. Methods of others that take a
    device may do the same. Those that take none are the same method everywhere.
    """
    if "device" not in signature(Entry(method["method"]).kind).parameters:
        return
    then, now = str(manifest.get("device")), device_name()
    if (on_gpu := not _is_cpu(then)) != _is_cpu(now):
        return
    remedy = "check it on a machine with a GPU" if on_gpu else "set CUDA_VISIBLE_DEVICES to an empty text"
    raise InputError(
        f"{path} was measured on {then}, and this is {now}: {method['label']} chooses its settings by the kind of "
        f"device, and would have other figures here; {remedy}."
    )


def _is_cpu(device: str) -> bool:
    return device.startswith("CPU")


def _refuse_other_inputs(path: Path, manifest: Mapping[str, Any], assignment: Assignment) -> None:
    if assignment.task.model.identity != manifest["model"]:
        raise InputError(f"{path} was measured with another model than {assignment.task.model.name} is here.")
    here = assignment.sets.digests
    for role in dict.fromkeys([*here, *manifest["texts"]]):
        if manifest["texts"].get(role) != here.get(role):
            raise InputError(f"{path} was measured on other texts: those for {role} differ.")


def _describe_origin(manifest: Mapping[str, Any]) -> str:
    versions = manifest.get("versions")
    known = versions if isinstance(versions, Mapping) else {}
    return f"apood {known.get('apood')} (source {str(known.get('source'))[:12]}) on {manifest.get('device')}"


def compare_results(kept: MethodResult, again: MethodResult, tolerance: float) -> list[str]:
    """Return one sentence per statement of a result that the other one does not bear out.

    AUROC and the accepted share may differ by the tolerance. FPR95, the ends of intervals, single seeds and resamples
    rest on fewer texts, and may differ by twice as much: honest ones do if one is from a GPU and the other from a CPU.
    The resamples of both are of the same texts, so they are alike if the scores are.
    Seconds, warnings, versions, the device, the command and the date are not compared, because they are of a machine
    and a day.
    """
    mine, theirs = kept.content, again.content
    notes: list[str] = []

    def compare(place: tuple[str, ...], first: Any, second: Any) -> None:
        notes.extend(_compare(place, first, second, tolerance))

    compare((), mine["figures"], theirs["figures"])
    compare((), *({f"the mean over {of}": own for of, own in one["means"].items()} for one in (mine, theirs)))
    compare((), *({"accepted": one.get("accepted")} for one in (mine, theirs)))
    for part in ("task", "method"):
        compare((f"the {part}",), mine[part], theirs[part])
    compare(("the artefact",), *({"artefact_bytes": one["costs"].get("artefact_bytes")} for one in (mine, theirs)))
    compare(("the texts left out",), *(one["manifest"].get("removed", {}) for one in (mine, theirs)))
    compare(("the encoder",), *(_drop_places(one["manifest"].get("encoder", {})) for one in (mine, theirs)))
    return [*notes, *_compare_resamples(kept, again, 2 * tolerance)]


def _compare(place: tuple[str, ...], kept: Any, again: Any, tolerance: float) -> Iterator[str]:
    """Yield a sentence per difference of two values, whose place is given by the words that lead to it."""
    if isinstance(kept, Mapping) and isinstance(again, Mapping):
        for key in dict.fromkeys([*again, *kept]):
            if (first := kept.get(key)) is None and again.get(key) is not None:
                yield f"{_name((*place, key))} was measured now, and is not in the file."
            elif (second := again.get(key)) is None and first is not None:
                yield f"{_name((*place, key))} is in the file, and was not measured."
            else:
                yield from _compare((*place, key), first, second, tolerance)
        return
    last = place[-1]
    many = isinstance(kept, list) and isinstance(again, list) and len(kept) == len(again)
    names: tuple[str, ...]
    allowed: tuple[float, ...]
    if many and last in _PERCENTAGES:
        value = tolerance if last == "auroc" else 2 * tolerance
        names, allowed = _PERCENTAGES[last], (value, 2 * tolerance, 2 * tolerance)
    elif many and last == "auroc_per_seed":
        names, allowed = tuple(f"auroc of seed {seed}" for seed in range(len(again))), (2 * tolerance,) * len(again)
    elif last in ("accepted", "artefact_bytes"):
        kept, again, names = [kept], [again], (last,)
        allowed = (tolerance if last == "accepted" else _BYTES * again[0],)
    else:
        kept, again, names, allowed = [kept], [again], (last,), (0.0,)
    for name, first, second, most in zip(names, kept, again, allowed, strict=True):
        if not _agree(first, second, most):
            yield f"{_name((*place[:-1], name))} is {_show(first)} in the file and {_show(second)} now."


def _agree(first: Any, second: Any, most: float) -> bool:
    if isinstance(first, int | float) and isinstance(second, int | float):
        return bool(second - most <= first <= second + most)  # so that what is not a number does not agree
    return bool(first == second)


def _compare_resamples(kept: MethodResult, again: MethodResult, most: float) -> Iterator[str]:
    """Yield a sentence per mean whose resamples differ by more than `most` on average; reports are made of these."""
    if not kept.has_scores:
        return
    for of, how in dict.fromkeys([*again.resampled, *kept.resampled]):
        name = f"the mean over {of}, {_NAMES.get(how, how)}"
        first, second = kept.mean(of, how), again.mean(of, how)
        if first is None or second is None:
            where = "were measured now, and are not" if first is None else "were not measured, and are"
            yield f"The resamples of {name} {where} in the file of scores."
            continue
        if first.shape != second.shape:
            yield f"The resamples of {name} in the file of scores are not {second.shape[1] - 1}, as those now."
        elif not (apart := _find_distance(first, second.astype(np.float32))) <= most:  # files have them in float32
            yield f"The resamples of {name} in the file of scores differ by {apart:.6g} from those now."


def _find_distance(first: Floats, second: Floats) -> float:
    """Return the mean difference of resamples, or that of their values or intervals if it is larger."""
    stated, measured = (np.array([estimate(row) for row in own]) for own in (first, second))
    return max(float(np.abs(first - second).mean(1).max()), float(np.abs(stated - measured).max()))


def _drop_places(encoder: Any) -> Any:
    if not isinstance(encoder, Mapping):
        return encoder
    return {key: value for key, value in encoder.items() if key not in _PLACES}


def _name(place: Sequence[str]) -> str:
    *rest, last = (_NAMES.get(word, word) for word in place)
    return f"{last} of {', '.join(rest)}" if rest else last


def _show(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else reprlib.repr(value)
