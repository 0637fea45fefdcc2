"""What the check of a results file compares: every statement, in both directions."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from apood.evaluation.entry import Entry
from apood.evaluation.result import Result, Run
from apood.experiments.text.checking import compare_results
from apood.experiments.text.results import MethodResult, compute_figures, read_result, write_result
from apood.support.errors import InputError
from apood.support.files import sha256_of

SEEDS = 2
KINDS = {"ood.near": "near", "ood.far": "far", "spliced.far": "spliced"}
Forge = Callable[[dict[str, Any]], object]


def write(path: Path, noise: float = 0.0) -> Path:
    """Write a result whose scores are drawn, with as much noise."""
    dice, rough = np.random.default_rng(0), np.random.default_rng(1)

    def draw(mean: float, count: int) -> np.ndarray:
        return dice.normal(mean, 1, count) + noise * rough.normal(size=count)

    runs = [
        Run(seed, seed, [], 95.0, 0.1, 0.1, 1000, [], test_scores=draw(1, 300),
            ood_scores={name: draw(0, 200) for name in KINDS})
        for seed in range(SEEDS)
    ]  # fmt: skip
    result = Result(Entry("length"), runs)
    lengths = {"test": np.full(300, 9), **{name: np.full(200, 9) for name in KINDS}}
    lengths["ood.far"] = np.full(200, 900)  # so it has no figures at equal lengths
    figures, means, resampled = compute_figures(result, KINDS, lengths)
    content = {
        "schema": 1,
        "task": {"name": "tiny-small", "status": "development", "view": "last", "views": ["last"]},
        "method": {"label": "length", "method": "length", "parameters": {}, "aux": 0},
        "figures": figures,
        "means": means,
        "accepted": 95.0,
        "costs": {"fit_seconds": 0.1, "score_seconds_per_1000": 0.1, "artefact_bytes": 1000},
        "warnings": [],
        "manifest": {
            "texts": {}, "removed": {"id": {"bad": 0}}, "encoder": {"model": "tiny", "max_tokens": 24}, "seeds": SEEDS
        },
    }  # fmt: skip
    write_result(path, content, result, resampled)
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result, as it was written."""
    return write(tmp_path_factory.mktemp("now") / "length.json")


@pytest.fixture
def honest(original: Path) -> MethodResult:
    return read_result(original)


@pytest.fixture
def copied(original: Path, tmp_path: Path) -> Path:
    """A copy of the result, with its file of scores."""
    for path in (original, original.with_suffix(".safetensors")):
        shutil.copy(path, tmp_path)
    return tmp_path / original.name


def change_content(path: Path, forge: Forge) -> MethodResult:
    """Change the content of a results file, and return the result."""
    content = json.loads(path.read_text(encoding="utf-8"))
    forge(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    return read_result(path)


def change_scores(path: Path, forge: Callable[[dict[str, np.ndarray]], object]) -> MethodResult:
    """Change the file of scores of a results file, which states its digest, and return the result."""
    beside = path.with_suffix(".safetensors")
    arrays = load_file(beside)
    forge(arrays)
    save_file({key: np.ascontiguousarray(own) for key, own in arrays.items()}, beside)
    return change_content(path, put("scores", "sha256", value=sha256_of(beside)))


def put(*place: str | int, value: Any) -> Forge:
    """Return a function that puts a value in a place of a content."""

    def forge(content: dict[str, Any]) -> None:
        inside: Any = content
        for key in place[:-1]:
            inside = inside[key]
        inside[place[-1]] = value

    return forge


def forget(*place: str) -> Forge:
    """Return a function that removes what is in a place of a content."""

    def forge(content: dict[str, Any]) -> None:
        inside = content
        for key in place[:-1]:
            inside = inside[key]
        del inside[place[-1]]

    return forge


@pytest.mark.parametrize(
    ("forge", "sentence"),
    [
        (put("figures", "ood.near", "plain", "auroc", 0, value=99.0), "auroc of ood.near, plain is 99 in the file"),
        (put("figures", "ood.near", "plain", "fpr95", 1, value=0.0), "the lower end of fpr95 of ood.near, plain is 0"),
        (put("figures", "ood.near", "plain", "auroc", 2, value=99.0), "the upper end of auroc of ood.near, plain is"),
        (put("figures", "ood.near", "plain", "auroc", 0, value=math.nan), "auroc of ood.near, plain is nan in"),
        (put("figures", "ood.near", "plain", "auroc", 0, value="99"), "auroc of ood.near, plain is '99' in the file"),
        (put("figures", "ood.near", "plain", "auroc", value=[99.0]), r"auroc of ood.near, plain is \[99.0\] in the"),
        (put("figures", "ood.near", "plain", value=1), "plain of ood.near is 1 in the file and {"),
        (forget("figures", "ood.near", "plain", "fpr95"), "fpr95 of ood.near, plain was measured now, and is not in"),
        (put("figures", "ood.near", "equal_lengths", value=None), "equal lengths of ood.near was measured now, and is"),
        (put("figures", "ood.far", "equal_lengths", value={}), "equal lengths of ood.far is in the file, and was not"),
        (put("figures", "ood.near", "auroc_per_seed", 1, value=90.0), "auroc of seed 1 of ood.near is 90 in the file"),
        (put("figures", "ood.near", "auroc_per_seed", value=[75.0]), r"auroc per seed of ood.near is \[75.0\] in"),
        (put("figures", "ood.near", "texts", value=2000), "texts of ood.near is 2000 in the file and 200 now"),
        (put("figures", "ood.far", "kind", value="near"), "kind of ood.far is 'near' in the file and 'far' now"),
        (put("figures", "ood.new", value={"kind": "far"}), "ood.new is in the file, and was not measured"),
        (forget("figures", "ood.near"), "ood.near was measured now, and is not in the file"),
        (put("means", "all", "plain", "fpr95", 2, value=90.0), "the upper end of fpr95 of the mean over all, plain is"),
        (put("means", "other", value={}), "the mean over other is in the file, and was not measured"),
        (forget("means", "spliced"), "the mean over spliced was measured now, and is not in the file"),
        (put("accepted", value=99.0), "accepted is 99 in the file and 95 now"),
        (forget("accepted"), "accepted was measured now, and is not in the file"),
        (put("task", "status", value="untouched"), "status of the task is 'untouched' in the file and 'development'"),
        (put("method", "aux", value=8), "aux of the method is 8 in the file and 0 now"),
        (put("method", "parameters", "k", value=3), "k of the method, parameters is in the file, and was not measured"),
        (put("costs", "artefact_bytes", value=10), "bytes of the artefact is 10 in the file and 1000 now"),
        (put("manifest", "removed", "id", "bad", value=1), "bad of the texts left out, id is 1 in the file and 0 now"),
        (put("manifest", "encoder", "max_tokens", value=64), "max_tokens of the encoder is 64 in the file and 24 now"),
    ],
)  # fmt: skip
def test_a_forged_statement_is_named(copied: Path, honest: MethodResult, forge: Forge, sentence: str) -> None:
    (note,) = compare_results(change_content(copied, forge), honest, 0.5)
    assert re.match(sentence, note), note


@pytest.mark.parametrize("part", ["figures", "means"])
def test_emptied_parts_are_missed(copied: Path, honest: MethodResult, part: str) -> None:
    notes = compare_results(change_content(copied, put(part, value={})), honest, 0.5)
    assert len(notes) == len(honest.content[part])
    assert all(note.endswith("was measured now, and is not in the file.") for note in notes)
    with pytest.raises(InputError, match="is not a result of"):
        change_content(copied, forget(part))


@pytest.mark.parametrize(
    ("forge", "sentence"),
    [
        (lambda own: own[:, 0].__iadd__(5), "the mean over all, plain in the file of scores differ by 5 from"),
        (lambda own: own[:, 1:].sort(axis=1), "the mean over all, plain in the file of scores differ by"),
        (lambda own: np.minimum(own, np.quantile(own, 0.5, axis=1)[:, None], out=own), "differ by"),
    ],
    ids=["a value", "pairs", "an interval"],
)
def test_forged_resamples_are_found(
    copied: Path, honest: MethodResult, forge: Callable[[Any], Any], sentence: str
) -> None:
    """A report takes its differences between methods from them."""

    def change(arrays: dict[str, np.ndarray]) -> None:
        forge(arrays["resampled.all.plain"])

    (note,) = compare_results(change_scores(copied, change), honest, 0.5)
    assert sentence in note


def test_resamples_that_are_missing_or_too_many_are_found(copied: Path, honest: MethodResult) -> None:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays["resampled.all.plain"] = arrays["resampled.all.plain"][:, :100]
        arrays["resampled.other.plain"] = arrays.pop("resampled.all.equal_lengths")

    assert sorted(compare_results(change_scores(copied, change), honest, 0.5)) == [
        "The resamples of the mean over all, equal lengths were measured now, and are not in the file of scores.",
        "The resamples of the mean over all, plain in the file of scores are not 500, as those now.",
        "The resamples of the mean over other, plain were not measured, and are in the file of scores.",
    ]


def test_an_honest_result_agrees(copied: Path, honest: MethodResult) -> None:
    def change(content: dict[str, Any]) -> None:
        content["costs"] |= {"fit_seconds": 9.0, "artefact_bytes": 1004}
        content["manifest"]["encoder"]["model"] = "a copy"
        content["manifest"]["device"] = "another"

    assert compare_results(read_result(copied), honest, 0.0) == []
    assert compare_results(change_content(copied, change), honest, 0.0) == []
    copied.with_suffix(".safetensors").unlink()
    assert compare_results(read_result(copied), honest, 0.0) == []


@pytest.mark.parametrize(
    ("place", "most"),
    [
        (("plain", "auroc", 0), 0.5),
        (("plain", "auroc", 1), 1.0),
        (("plain", "fpr95", 0), 1.0),
        (("plain", "fpr95", 2), 1.0),
        (("auroc_per_seed", 0), 1.0),
    ],
)
def test_what_rests_on_fewer_texts_may_differ_more(
    copied: Path, honest: MethodResult, place: tuple[str | int, ...], most: float
) -> None:
    kept: Any = honest.content["figures"]["ood.near"]
    for key in place:
        kept = kept[key]
    for beyond, found in ((-0.01, 0), (0.01, 1)):
        forged = change_content(copied, put("figures", "ood.near", *place, value=kept + most + beyond))
        assert len(compare_results(forged, honest, 0.5)) == found


def test_a_little_noise_in_scores_is_no_forgery(tmp_path: Path, honest: MethodResult) -> None:
    """Intervals are of resamples of the same texts, so they hardly change if scores hardly change."""
    rough = read_result(write(tmp_path / "rough.json", noise=1e-3))
    assert compare_results(rough, honest, 0.5) == []
    assert compare_results(rough, honest, 0.0)
