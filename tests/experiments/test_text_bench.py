"""The text benchmark in miniature: what it measures, keeps, reports and checks."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from text_corpora import write_corpora
from tiny_audio import make_audio_model, noise, tone

from apood.detectors.length import Length
from apood.evaluation.entry import Entry
from apood.evaluation.metrics import auroc, fpr95
from apood.experiments.text import checking
from apood.experiments.text import rows as rows_module
from apood.experiments.text.bootstrap import estimate_difference, resample
from apood.experiments.text.checking import check_result
from apood.experiments.text.measure import _StudyData
from apood.experiments.text.report import make_page
from apood.experiments.text.results import list_results, make_key, read_result
from apood.experiments.text.runner import TextBenchOptions, prepare
from apood.experiments.text.tasks import _Held, open_sets, parse_view
from apood.support.errors import InputError
from apood.support.files import sha256_of
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.digests import content_digest
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

ALONE = (
    Entry("mahalanobis-knn", name="default"),
    Entry("mahalanobis", {"normalize": "none"}, "Mahalanobis, raw"),
    Entry("deep-svdd", {"steps": 3}, "Deep SVDD, raw"),
    Entry("perplexity", name="perplexity"),
    Entry("length", name="length"),
)
LEARNING = (Entry("deep-sad", {"steps": 3}, "Deep SAD"), Entry("binary-logits", name="binary logits"))

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def declaration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


@pytest.fixture(scope="module")
def few_rows() -> Any:
    """Only a few quick methods are measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "ALONE", ALONE)
        patch.setattr(rows_module, "WITH_AUX", LEARNING)
        patch.setattr(rows_module, "AUX_COUNTS", (8, 32, 600))
        yield


@pytest.fixture(scope="module")
def options(
    declaration: Path, models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> TextBenchOptions:
    out = tmp_path_factory.mktemp("out")
    return TextBenchOptions(declaration, [f"tiny={models('bert')}"], views=(-1, 1), seeds=2, out=out)


@pytest.fixture(scope="module")
def measured(options: TextBenchOptions, few_rows: None) -> Path:  # noqa: ARG001
    """The folder of a run on all corpora in two views."""
    written, failures = prepare(options).run()
    assert not failures and written[-2:] == [options.out / "report.md", options.out / "aux-curve.png"]
    return options.out


def find(folder: Path, task: str, view: str, label: str) -> dict[str, Any]:
    return json.loads((folder / "results" / task / view / f"{label}.json").read_text(encoding="utf-8"))


def test_every_row_has_a_result_in_every_view(measured: Path) -> None:
    found: dict[tuple[str, str], set[str]] = {}
    for result in list_results([measured]):
        facts = result.content["task"]
        found.setdefault((facts["name"], facts["view"]), set()).add(result.content["method"]["label"])
    alone = {"default", "Mahalanobis, raw", "Deep SVDD, raw"}
    learning = {f"{name}, {count} AUX" for name in ("Deep SAD", "binary logits") for count in (8, 32)}
    assert found == {
        ("tiny-small", "last"): alone | learning | {"length"},  # length is the same in every view
        ("tiny-small", "1"): alone | learning,
        ("tiny-whole", "last"): alone | {"length"},  # without AUX texts
        ("tiny-whole", "1"): alone,
    }


def test_figures_are_those_of_the_scores(measured: Path) -> None:
    from safetensors.numpy import load_file

    path = measured / "results" / "tiny-small" / "last" / "deep-svdd-raw.json"
    content, scores = json.loads(path.read_text(encoding="utf-8")), load_file(path.with_suffix(".safetensors"))
    assert set(content["figures"]) == {"ood.other", "ood.alike", "spliced.other", "spliced.alike", "spliced.aux"}
    assert {name: own["kind"] for name, own in content["figures"].items()}["ood.alike"] == "near"
    for name, own in content["figures"].items():
        pairs = [[scores[f"scores.{seed}.{one}"].astype(float) for one in ("test", name)] for seed in range(2)]
        for metric, compute in (("auroc", auroc), ("fpr95", fpr95)):
            value, low, high = own["plain"][metric]
            assert value == pytest.approx(100 * np.mean([compute(*pair).value for pair in pairs]), abs=1e-3)
            assert low <= value <= high
    plain = [content["figures"][f"ood.{name}"]["plain"]["auroc"][0] for name in ("other", "alike")]
    assert content["means"]["all"]["plain"]["auroc"][0] == pytest.approx(np.mean(plain), abs=1e-3)
    assert content["figures"]["ood.other"]["equal_lengths"] is not None
    assert 80 <= content["accepted"] <= 100 and content["costs"]["fit_seconds"] > 0


def test_the_manifest_says_what_figures_depend_on(measured: Path, models: Callable[[str], Path]) -> None:
    manifest = find(measured, "tiny-small", "last", "length")["manifest"]
    assert set(manifest["texts"]) >= {"train", "validation", "test", "aux", "ood.other", "spliced.aux"}
    assert manifest["removed"]["id_train"] == {"bad": 0, "repeated": 0, "known": 0}
    assert manifest["encoder"]["max_tokens"] == 24 and "folder" not in manifest["encoder"]
    assert manifest["command"].startswith("apood bench text run corpora.toml --model tiny=bert")
    assert str(models("bert").parent) not in json.dumps(manifest), "paths mean nothing elsewhere"
    assert {"device", "versions", "seeds", "finished", "source", "model"} <= set(manifest)


def test_a_second_run_does_nothing_again(measured: Path, options: TextBenchOptions) -> None:
    before = {path: path.stat().st_mtime_ns for path in (measured / "results").rglob("*.json")}
    assert not any((measured / "cache").rglob("*.json")), "fits are not needed any more"
    prepared = prepare(options)
    assert all(fact.startswith("0 texts to embed") for name, fact in prepared.facts.items() if name.startswith("tiny-"))
    prepared.run()
    assert {path: path.stat().st_mtime_ns for path in (measured / "results").rglob("*.json")} == before


def test_the_page_shows_all_rows_and_the_default_against_them(measured: Path) -> None:
    page = (measured / "report.md").read_text(encoding="utf-8")
    assert "## Summary, all tasks (2)" in page and "## Summary, the untouched ones among them (1)" in page
    assert "Settings of apood were chosen on tiny-small." in page
    assert "## tiny-whole (untouched)" in page and "## tiny-small (settings were chosen on it)" in page
    summary = page.partition("## Summary, all tasks")[2].partition("## ")[0]
    assert "| default | last |" in summary and "| default | 1 |" in summary and "| length | any |" in summary
    rows = [line.split(" | ") for line in summary.splitlines() if line.startswith("| ")][2:]
    ranks = [float(row[2]) for row in rows]
    assert ranks == sorted(ranks)
    default = next(row for row in rows if row[:2] == ["| default", "last"])
    assert default[8:] == ["", "", " |"] or "[" not in "".join(default[8:])
    assert all("[" in row[8] for row in rows if row[:2] != ["| default", "last"])
    assert "| Deep SAD | last | - | " in page, "there is no Deep SAD without AUX texts here"


def test_tasks_whose_first_views_differ_share_a_row(measured: Path) -> None:
    """The view that suits a model may differ between models; the summary has it as `auto`."""
    results = list_results([measured])
    for result in results:
        if result.task == "tiny-whole":
            result.content["task"]["views"].reverse()
    summary = make_page(results).partition("## Summary, all tasks")[2].partition("## ")[0]
    rows = {tuple(line.split(" | ")[:2]): line.split(" | ") for line in summary.splitlines()}
    own = [find(measured, *place, "default")["means"]["all"]["plain"]["auroc"][0] for place in
           (("tiny-small", "last"), ("tiny-whole", "1"))]  # fmt: skip
    assert float(rows["| default", "auto"][3].split(" / ")[0]) == pytest.approx(np.mean(own), abs=0.06)
    assert "[" not in rows["| default", "auto"][8] and "[" in rows["| default", "last"][8]
    assert ("| length", "auto") not in rows and ("| Mahalanobis, raw", "auto") in rows


def test_a_difference_is_that_of_paired_resamples() -> None:
    dice = np.random.default_rng(0)
    test, ood = dice.normal(1, 1, 200), dice.normal(0, 1, 150)
    first, again, other = (resample(test, own, "set") for own in (ood, ood, ood + 0.01))
    assert first is not None and again is not None and other is not None
    assert np.array_equal(first, again) and first.shape == (2, 501)
    assert first[0, 0] == pytest.approx(100 * auroc(test, ood).value)
    difference = estimate_difference([first[0]], [other[0]])
    assert 0 < difference.value < 1 and difference.high - difference.low < 0.5, "far less than each alone varies"


def test_a_result_is_checked_by_measuring_again(measured: Path, options: TextBenchOptions, tmp_path: Path) -> None:
    path = measured / "results" / "tiny-small" / "1" / "binary-logits-8-aux.json"
    asked = TextBenchOptions(options.declaration, options.models, out=measured)
    assert check_result(path, asked, 0.01) == []
    assert not any((measured / "cache").rglob("*.json"))
    content = json.loads(path.read_text(encoding="utf-8"))
    content["figures"]["ood.other"]["plain"]["auroc"][0] += 1.5
    changed = tmp_path / path.name
    changed.write_text(json.dumps(content), encoding="utf-8")
    shutil.copy(path.with_suffix(".safetensors"), tmp_path)
    (note,) = check_result(changed, asked, 0.5)
    assert note.startswith("auroc of ood.other, plain is ")
    assert check_result(changed, asked, 2.0) == []
    content["manifest"]["versions"]["source"] = "0" * 64
    changed.write_text(json.dumps(content), encoding="utf-8")
    (_, note) = check_result(changed, asked, 0.5)
    assert re.match(r"The file is from apood .* \(source 000000000000\) on CPU, 1 thread; measured now with", note)


@pytest.mark.parametrize(
    ("part", "key", "value", "sentence"),
    [
        ("task", "mode", None, "its task has no proper mode"),
        ("method", "aux", "8", "its method has no proper aux"),
        ("manifest", "seeds", 0, "seeds must be at least 1"),
        ("manifest", "texts", {}, "on other texts: those for train differ"),
        ("manifest", "texts", [], "its manifest has no proper texts"),
        ("task", "view", "mix", "its view 'mix' is none of its views"),
        ("task", "corpus", "big", "There is no corpus 'big'"),
        ("method", "label", "KNN", "There is no row 'KNN' on tiny-small"),
    ],
)
def test_a_result_that_does_not_say_what_it_is_of_is_refused(
    measured: Path, options: TextBenchOptions, tmp_path: Path, part: str, key: str, value: Any, sentence: str
) -> None:
    content = find(measured, "tiny-small", "last", "length")
    content[part][key] = value
    (tmp_path / "length.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InputError, match=sentence):
        check_result(tmp_path / "length.json", replace(options, out=measured), 0.5)


def test_a_check_of_other_texts_or_models_is_refused(
    measured: Path, options: TextBenchOptions, models: Callable[[str], Path], tmp_path: Path
) -> None:
    path = measured / "results" / "tiny-small" / "last" / "length.json"
    with pytest.raises(InputError, match="was measured with the model tiny: give it as tiny=FOLDER"):
        check_result(path, replace(options, models=[f"other={models('bert')}"]), 0.5)
    with pytest.raises(InputError, match="with another model than tiny is here"):
        check_result(path, replace(options, models=[f"tiny={models('roberta')}"]), 0.5)
    elsewhere = write_corpora(tmp_path / "data")
    elsewhere.write_text(elsewhere.read_text(encoding="utf-8").replace("train = 200", "train = 150"), encoding="utf-8")
    with pytest.raises(InputError, match=r"was measured on other texts: those for train differ"):
        check_result(path, replace(options, declaration=elsewhere), 0.5)


@pytest.mark.parametrize(
    ("method", "then", "now", "sentence"),
    [
        ("default", "NVIDIA H200", "CPU, 1 thread", "NVIDIA H200, and this is CPU, 1 thread: .* with a GPU"),
        ("ap-ood", "CPU, 2 threads", "NVIDIA H200", "CPU, 2 threads, and this is NVIDIA H200: .* CUDA_VISIBLE_DEVICES"),
        ("ap-ood", "NVIDIA H200", "NVIDIA L4", None),
        ("ap-ood", "CPU, 2 threads", "CPU, 1 thread", None),
        ("length", "NVIDIA H200", "CPU, 1 thread", None),
    ],
)
def test_settings_of_another_kind_of_device_are_not_called_wrong(
    measured: Path,
    options: TextBenchOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    then: str,
    now: str,
    sentence: str | None,
) -> None:
    """AP-OOD has other heads and queries on a GPU, so a result from there says nothing about one from a CPU."""
    monkeypatch.setattr(checking, "device_name", lambda: now)
    content = find(measured, "tiny-small", "last", "length")
    content["method"]["method"], content["manifest"]["device"] = method, then
    (tmp_path / "length.json").write_text(json.dumps(content), encoding="utf-8")
    asked = replace(options, out=measured)
    if sentence is not None:
        with pytest.raises(InputError, match=sentence):
            check_result(tmp_path / "length.json", asked, 0.5)
    elif method == "length":
        assert check_result(tmp_path / "length.json", asked, 0.5) == []
    else:  # the device is no reason to refuse it, and it has another label than the method
        with pytest.raises(InputError, match="There is no row 'length'"):
            check_result(tmp_path / "length.json", asked, 0.5)


def test_a_changed_or_foreign_file_is_no_result(measured: Path, tmp_path: Path) -> None:
    path = measured / "results" / "tiny-small" / "last" / "length.json"
    for name in (path, path.with_suffix(".safetensors")):
        shutil.copy(name, tmp_path)
    (tmp_path / "length.safetensors").write_bytes(b"something else")
    with pytest.raises(InputError, match="is not the file that"):
        read_result(tmp_path / "length.json")
    for content in ("[]", "{}", "not JSON", '{"schema": 99}'):
        (tmp_path / "length.json").write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match="is not a result of `apood bench text`"):
            read_result(tmp_path / "length.json")
    lacking = json.loads(path.read_text(encoding="utf-8"))
    lacking["method"].pop("label")
    (tmp_path / "length.json").write_text(json.dumps(lacking), encoding="utf-8")
    with pytest.raises(InputError, match="its method has no proper label"):
        list_results([tmp_path])
    other = json.loads(path.read_text(encoding="utf-8"))
    other["scores"]["sha256"] = sha256_of(tmp_path / "length.safetensors")
    (tmp_path / "length.json").write_text(json.dumps(other), encoding="utf-8")
    with pytest.raises(InputError, match="is not a result of `apood bench text`"):
        list_results([tmp_path])
    with pytest.raises(InputError, match="There are no results below"):
        list_results([tmp_path / "nothing"])


def test_without_its_scores_a_result_has_figures_but_no_intervals(measured: Path, tmp_path: Path) -> None:
    shutil.copytree(measured / "results", tmp_path / "results")
    for path in (tmp_path / "results").rglob("*.safetensors"):
        path.unlink()
    whole, bare = (
        make_page(list_results([folder])).partition("## Summary, all tasks")[2].partition("## ")[0]
        for folder in (measured, tmp_path)
    )
    assert "[" in whole and "[" not in bare
    rows = [[line.split(" | ")[:3] for line in page.splitlines()] for page in (whole, bare)]
    assert rows[0] == rows[1]


def test_names_with_signs_of_markdown_stay_in_their_cells(measured: Path) -> None:
    kept = [one for one in list_results([measured]) if one.task == "tiny-small"]
    content = json.loads(json.dumps(kept[0].content))
    content["method"]["label"], content["figures"] = "a|b*", {"ood.x|y": content["figures"]["ood.other"]}
    page = make_page([replace(kept[0], content=content)])
    assert r"| a\|b\* |" in page and r"| x\|y (far) |" in page


def test_results_on_other_texts_are_not_compared(measured: Path) -> None:
    kept = list_results([measured])
    content = json.loads(json.dumps(kept[0].content))
    content["manifest"]["texts"]["train"] = "0"
    with pytest.raises(InputError, match="was measured on other texts of"):
        make_page([*kept, replace(kept[0], content=content)])


@pytest.mark.usefixtures("few_rows")
def test_a_method_from_outside_is_one_file(measured: Path, options: TextBenchOptions, tmp_path: Path) -> None:
    """It needs no registration; its results join those of others in one report."""
    asked = replace(options, methods=("outside_method:FirstToken",), out=tmp_path, corpora=("small",), views=(-1,))
    written, failures = prepare(asked).run()
    assert not failures
    path = tmp_path / "results" / "tiny-small" / "last" / "first-token.json"
    assert path in written and read_result(path).content["method"]["method"] == "outside_method:FirstToken"
    assert check_result(path, asked, 0.01) == []
    page = make_page(list_results([measured, tmp_path]))
    assert "| first-token | last |" in page.partition("## tiny-small")[2]


def test_a_result_belongs_to_the_code_of_its_method(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own_code.py"
    own.write_text("from apood import Length\n\nclass Own(Length):\n    name = 'own'\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    row = Entry("own_code:Own")
    described = find(measured, "tiny-small", "last", "length")["manifest"]
    before = make_key(row, described)
    own.write_text(own.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    assert make_key(row, described) != before
    sys.modules.pop("own_code")


@pytest.mark.usefixtures("few_rows")
def test_results_of_another_model_do_not_join(
    options: TextBenchOptions, models: Callable[[str], Path], tmp_path: Path
) -> None:
    asked = replace(options, corpora=("whole",), views=(-1,), out=tmp_path, methods=("default", "length"))
    prepare(asked).run()
    other = replace(asked, models=[f"tiny={models('roberta')}"], methods=("length",))
    prepare(other).run()
    page = (tmp_path / "report.md").read_text(encoding="utf-8").partition("## tiny-whole")[2]
    assert "| length | any |" in page and "| default |" not in page, "the default was measured with the other model"
    with pytest.raises(InputError, match="was measured with another model for tiny-whole"):
        make_page(list_results([tmp_path]))


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_outputs_and_log_probabilities_are_measured(
    options: TextBenchOptions, models: Callable[[str], Path], tmp_path: Path, family: str
) -> None:
    asked = replace(
        options, models=[f"{family}={models(family)}"], modes=("input", "output"), out=tmp_path, corpora=("whole",)
    )
    assert not prepare(asked).run()[1]
    found = {(result.task, result.row) for result in list_results([tmp_path])}
    assert (f"{family}-whole-output", ("perplexity", "any")) in found
    assert ((f"{family}-whole", ("perplexity", "any")) in found) == (family == "llama"), "an encoder predicts nothing"
    assert (f"{family}-whole-output", ("default", "1")) in found


@pytest.mark.usefixtures("few_rows")
@pytest.mark.usefixtures("quick_processes")
def test_tasks_in_processes_give_the_same_results(measured: Path, options: TextBenchOptions, tmp_path: Path) -> None:
    shutil.copytree(measured / "stores", tmp_path / "stores")
    asked = replace(options, out=tmp_path, jobs=2, methods=("mahalanobis", "length"), views=(-1,))
    assert not prepare(asked).run()[1]
    for task in ("tiny-small", "tiny-whole"):
        mine, theirs = (find(folder, task, "last", "mahalanobis-raw")["figures"] for folder in (tmp_path, measured))
        assert mine == theirs


@pytest.mark.usefixtures("few_rows")
def test_sounds_are_measured_without_splices(tmp_path: Path) -> None:
    for name, sounds in {
        "id": [tone(0.7, seed, 16_000) for seed in range(300)],
        "other": [noise(0.7, seed, 16_000) for seed in range(20)],
    }.items():
        np.savez(tmp_path / f"{name}.npz", audio=np.stack(sounds), sr=16_000)
    (tmp_path / "sounds.toml").write_text(
        '[corpora.hums]\nstatus = "untouched"\nid = "id.npz"\n'
        '[corpora.hums.ood]\nhiss = {input = "other.npz", kind = "far"}\n',
        encoding="utf-8",
    )
    model = make_audio_model(tmp_path / "classifier")
    asked = TextBenchOptions(
        tmp_path / "sounds.toml", [f"ast={model}"], views=(-1,), seeds=1, out=tmp_path / "out", methods=("mahalanobis",)
    )
    assert not prepare(asked).run()[1]
    content = find(tmp_path / "out", "ast-hums", "last", "mahalanobis-raw")
    assert list(content["figures"]) == ["ood.hiss"] and content["means"]["spliced"]["plain"] is None


@pytest.mark.usefixtures("few_rows")
def test_a_row_that_fails_stops_no_other(
    options: TextBenchOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = (Entry("knn", {"k": 10**6}, "KNN of too many"), *ALONE[:2])
    monkeypatch.setattr(rows_module, "ALONE", broken)
    written, (failure,) = prepare(replace(options, out=tmp_path, corpora=("whole",), views=(-1,))).run()
    assert failure.startswith("tiny-whole, last: KNN of too many, split 1: k=1000000 neighbours need")
    assert sum(path.suffix == ".json" for path in written) == 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"models": ["tiny"]}, "A model is given as NAME=FOLDER"),
        ({"models": []}, "At least one model is needed"),
        ({"models": ["a b=x"]}, "A model is given as NAME=FOLDER"),
        ({"corpora": ["smal"]}, "There is no corpus 'smal' .did you mean 'small'"),
        ({"views": ()}, "layers must name different views"),
        ({"views": (-1, -1)}, "layers must name different views"),
        ({"views": ("mix:1,2", "mix:1, 2")}, "layers mix:1, 2. would have the same files, tiny-small-mix-1-2"),
        ({"views": ("mixed",)}, "layers must be auto, mix, the number of a layer"),
        ({"modes": ("output",)}, "No model can be used on any corpus"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"jobs": 0}, "jobs must be at least 1"),
    ],
)
def test_bad_options_are_refused(options: TextBenchOptions, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        prepare(replace(options, **changes))


@pytest.mark.parametrize("method", ["binary-logits", "perplexity"])
def test_methods_that_cannot_work_are_refused_before_anything_is_embedded(
    options: TextBenchOptions, tmp_path: Path, method: str
) -> None:
    asked = replace(options, methods=(method,), corpora=("whole",), out=tmp_path / "out")  # an encoder, without AUX
    with pytest.raises(InputError, match=f"nothing to measure: {method.replace('-', ' ')} cannot work.*at least 8"):
        prepare(asked)
    assert not (tmp_path / "out").exists()
    assert prepare(replace(asked, methods=("msp",))), "whether there are logits is known once texts are embedded"


def test_methods_of_one_name_are_not_one_row(options: TextBenchOptions) -> None:
    with pytest.raises(InputError, match="FirstToken and outside_method:LastToken are both called first-token"):
        prepare(replace(options, methods=("outside_method:FirstToken", "outside_method:LastToken")))


def test_a_hub_id_stays_whole_in_the_command(options: TextBenchOptions) -> None:
    models = [*options.models, "mini=sentence-transformers/all-MiniLM-L6-v2"]
    command = replace(options, models=models).command
    assert "--model tiny=bert --model mini=sentence-transformers/all-MiniLM-L6-v2" in command


def test_one_name_is_one_model(options: TextBenchOptions) -> None:
    with pytest.raises(InputError, match="Two models are called 'tiny'"):
        prepare(replace(options, models=[*options.models, *options.models]))


def test_a_mode_that_is_named_twice_is_measured_once(options: TextBenchOptions) -> None:
    once, twice = (prepare(replace(options, modes=modes)).assignments for modes in (("input",), ("input", "input")))
    assert list(map(str, once)) == list(map(str, twice))


def test_layers_from_below_and_from_above_have_files_of_their_own(options: TextBenchOptions) -> None:
    prepared = prepare(replace(options, views=(2, -2, "mix:1,2", "mix:-1,-2")))
    folders = {task.view_name: task.view_folder for task, _ in prepared.assignments}
    assert folders == {"2": "2", "-2": "minus-2", "mix:1,2": "mix-1-2", "mix:-1,-2": "mix-minus-1-minus-2"}
    assert len({task.file_name for task, _ in prepared.assignments}) == len(prepared.assignments)


def test_views_are_numbers_or_words() -> None:
    assert [parse_view(text) for text in ("last", "-1", "7", "mix")] == [-1, -1, 7, "mix"]


def test_tokens_in_memory_are_known_by_their_store(measured: Path) -> None:
    folder = next(path for path in (measured / "stores" / "tiny-small-last").iterdir() if path.is_dir())
    store = TokenStore(folder, channels=())
    held, again = (_Held(store, store.lengths > 0, torch.device("cpu")) for _ in range(2))
    assert len(held) == len(store) and content_digest(held) == content_digest(again)
    for indices in ([3, 1], slice(2, 9), [0]):
        assert torch.equal(held.select(indices).values, store.select(indices).values)
    opened = open_sets({"train": folder}, ["summary"], torch.device("cpu"))["train"]
    assert opened.channels == ("summary",) and opened.select([0]).channels["summary"].values.shape == (1, store.dim)


@pytest.mark.usefixtures("few_rows")
def test_a_method_gets_the_channels_that_it_welcomes(
    options: TextBenchOptions, monkeypatch: Any, tmp_path: Path
) -> None:
    """The default has one member more if there is a summary, as it has after `apood fit`."""
    seen: list[tuple[str, ...]] = []

    class Watching(Length):
        name = "watching"
        welcomes = frozenset({"summary"})

        def _fit(self, source: Any, aux: Any, checkpoint: Any) -> None:
            seen.append(tuple(source.channels))
            super()._fit(source, aux, checkpoint)

    monkeypatch.setattr(rows_module, "ALONE", (Entry(Watching, name="default"), ALONE[1]))
    assert not prepare(replace(options, out=tmp_path, corpora=("whole",), views=("mix",))).run()[1]
    assert seen == [("summary",)]


def test_only_channels_that_all_stores_have_are_read(tmp_path: Path) -> None:
    """A channel that one store lacks is left alone in all."""
    row = Ragged.from_lengths(torch.ones(1, 2), [1])
    batch = TokenBatch.from_lengths(torch.ones(2, 2), [2]).with_channels(logits=row, summary=row)
    stores = {role: tmp_path / role for role in ("train", "test")}
    for folder, given in zip(stores.values(), (batch, replace(batch, channels={"logits": row})), strict=True):
        with TokenStoreWriter(folder, dim=2) as writer:
            writer.append(given)
    sets: Any = SimpleNamespace(items={}, has_sentences=False)
    for order in (("train", "test"), ("test", "train")):
        study = _StudyData(None, sets, {role: stores[role] for role in order}, 1, "")  # type: ignore[arg-type]
        assert study.channels == ("logits",)


def test_auto_is_the_view_that_suits_a_model(options: TextBenchOptions, models: Callable[[str], Path]) -> None:
    asked = replace(options, models=[f"{name}={models(name)}" for name in ("bert", "t5")], views=("auto", "mix", -1))
    views = {task.model.name: task.views for task, _ in prepare(asked).assignments}
    assert views == {"bert": ("mix", -1), "t5": (-1, "mix")}
