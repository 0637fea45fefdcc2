"""What is refused before any work, the estimated cost, reuse of stores and fits, and the paper's own data."""

import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_data import SETTINGS, random_texts, write_lines
from tiny_models import WORDS

from apood.experiments.paper import cost as cost_module
from apood.experiments.paper import stores as stores_module
from apood.experiments.paper.catalogue import load_experiment
from apood.experiments.paper.data_sets import MANIFEST, DataSets
from apood.experiments.paper.runner import BenchOptions, PreparedExperiment, prepare
from apood.experiments.paper.stores import embed_all
from apood.experiments.paper.study_data import RecipeChoice, StudyData, TableContext
from apood.experiments.paper.tasks import Settings
from apood.support.errors import ApoodError, InputError
from apood.tokens.batch import decode_texts
from apood.tokens.store import TokenStore

pytestmark = pytest.mark.usefixtures("one_thread")

ID = 'id_train = "train.jsonl"\nid_test = "test.jsonl"\n'
OOD = '[ood]\nother = "other.jsonl"\n'


@pytest.fixture
def folder(texts: Path, tmp_path: Path) -> Path:
    """A copy of the texts; a test may replace its manifest."""
    return Path(shutil.copytree(texts, tmp_path / "data"))


def refused(name: str, *, dry_run: bool = False, **options: Any) -> str:
    with pytest.raises(ApoodError) as error:
        prepare(name, BenchOptions(**options), dry_run=dry_run)
    sentence = str(error.value)
    assert sentence.endswith(".") and "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("manifest", "facts"),
    [
        ("id_train = ", "not TOML"),
        pytest.param(f"id_train = {'[' * 100_000}", "not TOML", id="deep"),
        (ID + 'aux = "aux.jsonl"\n' + OOD + "[settings]\nqueries = [5, 7]", "(5, 7) divides D = 16"),
        ("id_trian = 'a'", "'id_trian' (did you mean 'id_train'?)"),
        (OOD, "id_train and id_test, or id alone, got none"),
        ('id = "train.jsonl"\n' + ID + OOD, "got id and id_train and id_test"),
        ('id_train = "train.jsonl"\n' + OOD, "got id_train"),
        (ID, "[ood]"),
        (ID + "[ood]\nmean = 'other.jsonl'", "cannot be called 'mean'"),
        (ID + "[ood]\nother = 'no.jsonl'", "There is no file"),
        (ID + "[ood]\nother = ['other.jsonl', './test.jsonl']", "ood.other and id_test both have"),
        (ID + "[ood]\nother = '*st.jsonl'", "ood.other and id_test both have"),
        (ID + "[ood]\nother = 3", "ood.other must be a file"),
        (ID + "[ood]\nother = {file = 'a'}", "'file' (did you mean 'files'?) in ood.other"),
        (ID + "[ood]\nother = {files = 'other.jsonl', labels = ['a']}", "ood.other has labels"),
        (ID + "[ood]\n'CNN/DM' = 'other.jsonl'\ncnn_dailymail = 'more.jsonl'", "Two OOD sets are called 'CNN/DM'"),
        (ID + OOD + "[settings]\ntrian = 3", "'trian' (did you mean 'train'?)"),
        (ID + OOD + "[settings]\ntrain = 0", "train must be at least 1, got 0"),
        (ID + OOD + "[settings]\nbetas = ['a']", "betas must be a finite number >= 0, got 'a'"),
        ("prompt = 'In short:'\n" + ID + OOD, "{text}"),
        ("field = 'body'\n" + ID + OOD, "has no field 'body'"),
    ],
)
def test_wrong_manifests_are_refused(folder: Path, models: Callable[[str], Path], manifest: str, facts: str) -> None:
    (folder / MANIFEST).write_text(manifest, encoding="utf-8")
    assert facts in refused("summarization", data=folder, model=str(models("bert")), out=folder / "out")
    assert not list(folder.glob("out/stores/*"))


def test_missing_and_unsuitable_inputs_are_refused(
    folder: Path, models: Callable[[str], Path], sounds: tuple[Path, Path]
) -> None:
    out, bert = folder / "out", str(models("bert"))
    assert "Data of your own need --data" in refused("summarization", model=bert, out=out)
    assert f"has no {MANIFEST}" in refused("summarization", data=folder.parent, model=bert, out=out)
    assert "There is no folder" in refused("summarization", data=folder / "no", model=bert, out=out)
    assert "There is no folder" in refused("summarization", data=folder, model="./no-model", out=out)
    assert "train one with `apood train translator`" in refused("translation", data=folder, out=out)
    assert "takes sounds" in refused("summarization", data=folder, model=str(sounds[1]), out=out)
    assert "takes texts, but the experiment audio is about sounds" in refused(
        "audio", data=sounds[0], model=bert, out=out
    )
    assert "leave out the model" in refused("multiple-instance", data=sounds[0], model=bert, out=out)
    assert "There is no experiment 'magic'; there are summarization" in refused("magic", data=folder)
    assert "seeds must be at least 1" in refused("summarization", data=folder, model=bert, seeds=0, out=out)
    (folder / MANIFEST).write_text(ID + OOD, encoding="utf-8")
    assert "learns from AUX sequences" in refused("summarization-supervised", data=folder, model=bert, out=out)
    (folder / "test.jsonl").write_text("", encoding="utf-8")
    assert "id_test has 0 sequences that can be used" in refused("summarization", data=folder, model=bert, out=out)
    assert "There is no OOD set 'x' to skip; there are other" in refused("summarization", data=folder, skip=["x"])
    assert "All OOD sets are skipped" in refused("summarization", data=folder, skip=["other"])


def test_generation_settings_that_are_no_json_are_refused(
    folder: Path, models: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(models("bart"), tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").write_text("{", encoding="utf-8")
    said = refused("summarization", data=folder, model=str(tmp_path / "model"), out=folder / "out")
    assert "generation_config.json' cannot be read: Expecting property name" in said


def test_a_refusal_leaves_no_files(folder: Path, models: Callable[[str], Path], bags: Path) -> None:
    out, bert = folder / "out", str(models("bert"))
    refused("summarization", data=folder, model="./no-model", out=out)
    refused("multiple-instance", data=bags, model=bert, out=out)
    for content in ("", '{"text": 3}\n'):
        (folder / "test.jsonl").write_text(content, encoding="utf-8")
        refused("summarization", data=folder, model=bert, out=out)
    assert not out.exists()
    out.write_text("a file", encoding="utf-8")
    assert "is not a folder" in refused("multiple-instance", data=bags, out=out)


def test_too_little_disk_is_refused(
    texts: Path, models: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    options = {"data": texts, "model": str(models("bert")), "out": tmp_path}
    assert "where only 1 kB are free" in refused("summarization", **options)
    assert prepare("summarization", BenchOptions(**options), dry_run=True).cost.disk > 1000  # type: ignore[arg-type]


def test_wrong_archives_are_refused(bags: Path, tmp_path: Path) -> None:
    import numpy as np

    (tmp_path / MANIFEST).write_text((bags / MANIFEST).read_text(encoding="utf-8"), encoding="utf-8")
    assert "There is no .npz archive" in refused("multiple-instance", data=tmp_path, out=tmp_path)
    np.savez(tmp_path / "musk.npz", X=np.zeros((2, 3)), bag=np.zeros(2, dtype=int))
    assert "has no array 'bag_label'" in refused("multiple-instance", data=tmp_path, out=tmp_path)
    np.savez(tmp_path / "musk.npz", X=np.zeros((2, 3)), bag=np.array([0, 2]), bag_label=np.array([1, 0]))
    assert "must hold X [vectors, D]" in refused("multiple-instance", data=tmp_path, out=tmp_path)


def test_a_model_that_cannot_generate_has_no_mode_output(
    texts: Path, models: Callable[[str], Path], tmp_path: Path
) -> None:
    prepared = prepare("summarization", BenchOptions(data=texts, model=str(models("bert")), out=tmp_path), dry_run=True)
    assert {embedding.mode for embedding in prepared.embeddings} == {"input"}
    assert "it generates nothing, so output is left out" in str(prepared.cost.facts["model"])
    assert prepared.seeds == 5 and "6 rows on 5 splits" in str(prepared.cost.facts["fit, input"])
    assert "2 settings of AP-OOD and 18 of other methods" in str(prepared.cost.facts["fit, input"])
    assert str(prepared.cost.facts["left out"]) == "Newsroom, Reddit, Samsum"
    assert not (tmp_path / "summarization").exists(), "a dry run leaves nothing behind"


def test_a_dry_run_downloads_nothing(texts: Path, tmp_path: Path) -> None:
    prepared = prepare("summarization", BenchOptions(data=texts, model="owner/model", out=tmp_path), dry_run=True)
    assert prepared.model is not None and prepared.model.found is None
    assert str(prepared.cost.facts["download"]).startswith("owner/model")


def test_the_robust_recipe_selects_no_settings(texts: Path, models: Callable[[str], Path], tmp_path: Path) -> None:
    options = BenchOptions(data=texts, model=str(models("bert")), recipe="robust", seeds=1, out=tmp_path)
    prepared = prepare("score-ablation", options)
    assert "settings" not in str(prepared.cost.facts["fit, input"])
    findings, _ = prepared.run()
    assert findings.results["selections"] == []
    assert {row["parameters"]["recipe"] for row in findings.results["rows"]} == {"robust"}
    assert {own.done["encoder"]["layers"] for own in prepared.embeddings} == {"mix"}


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("beta-ablation", "β = 0", "with beta = 0 they are all 0"),
        ("similarity-ablation", "Euclidean", "so it has similarity='dot' only"),
    ],
)
def test_the_reference_recipe_is_selected_like_the_papers(
    texts: Path, models: Callable[[str], Path], tmp_path: Path, name: str, row: str, reason: str
) -> None:
    """Rows that the authors' code has no meaning for fail alone, with the reason."""
    options = BenchOptions(data=texts, model=str(models("bert")), recipe="reference", seeds=1, out=tmp_path)
    assert "--recipe reference" in options.command(name)
    prepared = prepare(name, options)
    findings, _ = prepared.run()
    assert {own.done["encoder"]["layers"] for own in prepared.embeddings} == {"-1"}, "as in the paper"
    assert [selection["method"] for selection in findings.results["selections"]] == ["ap-ood"]
    rows = {own["row"]: own for own in findings.results["rows"] if own["method"] == "ap-ood"}
    assert reason in rows.pop(row)["failures"][0]
    assert {row["parameters"]["recipe"] for row in rows.values()} == {"reference"}
    assert all(row["failures"] == [] for row in rows.values())


@pytest.mark.parametrize(
    ("own", "older", "expected"), [(None, None, None), (3, None, 3), (None, 2, 2), (3, 2, 3), (1, 2, None)]
)
def test_the_profile_paper_generates_with_the_models_own_beams(
    texts: Path, models: Callable[[str], Path], tmp_path: Path, own: int | None, older: int | None, expected: int | None
) -> None:
    """The model's generation settings say how many; an older model has them in its configuration."""
    model = tmp_path / "model"
    shutil.copytree(models("pegasus"), model)
    settings = model / "generation_config.json"
    if own is not None:
        settings.write_text(json.dumps(json.loads(settings.read_text("utf-8")) | {"num_beams": own}), "utf-8")
    elif older is not None:
        settings.unlink()
    if older is not None:
        config = model / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text("utf-8")) | {"num_beams": older}), "utf-8")
    options = BenchOptions(profile="paper", model=str(model), skip=["Newsroom"], out=tmp_path / "out")
    stores = prepare("summarization", options, dry_run=True).embeddings
    assert {store.options.get("beams") for store in stores if store.mode == "output"} == {expected}
    assert all("beams" not in store.options for store in stores if store.mode == "input")
    local = BenchOptions(data=texts, model=str(model), out=tmp_path / "out")
    others = ((local, None), (replace(local, beams="own"), expected), (replace(options, beams="greedy"), None))
    for asked, beams in others:
        stores = prepare("summarization", asked, dry_run=True).embeddings
        assert {store.options.get("beams") for store in stores if store.mode == "output"} == {beams}


@pytest.mark.parametrize(("recipe", "temperature"), [("paper", 1.0), ("reference", 1.0), ("robust", None)])
def test_entropy_weights_plain_samples_as_the_authors_do(
    recipe: RecipeChoice, temperature: float | None, tmp_path: Path
) -> None:
    """Their code gives plain samples importance weights; apood's default knows that these need none."""
    study = StudyData(DataSets({}, Settings()), {}, seeds=1, recipe=recipe, cache=tmp_path)
    rows = load_experiment("summarization").rows(TableContext("output", 16, 0, Settings()))
    (row,) = (row for row in rows if row.label == "Entropy")
    assert study.resolve(row, "output").make_detector().get_params()["temperature"] == temperature


def test_stores_and_fits_are_reused(
    texts: Path, models: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = BenchOptions(data=texts, model=str(models("bert")), seeds=1, out=tmp_path)
    first, _ = prepare("summarization", options).run()
    fits = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("fit.json")}
    monkeypatch.setattr(stores_module, "open_encoder", lambda *_, **__: pytest.fail("the model is not needed"))
    prepared = prepare("summarization", options)
    assert "done" in str(prepared.cost.facts["embed, input"])
    again, _ = prepared.run()
    assert again.to_json() == first.to_json()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("fit.json")} == fits


def test_the_command_in_the_manifest_can_be_parsed() -> None:
    options = BenchOptions(data=Path("my data"), seeds=2, recipe="robust", skip=["CNN/DM", "it's"], jobs=4)
    words = ["apood", "bench", "audio", "--data", "my data", "--seeds", "2", "--recipe", "robust", "--out", "bench"]
    assert shlex.split(options.command("audio")) == [*words, "--skip", "CNN/DM", "--skip", "it's"]
    assert BenchOptions().command("toy") == "apood bench toy --out bench"
    assert BenchOptions(beams="own").command("toy") == "apood bench toy --beams own --out bench"


@pytest.mark.usefixtures("quick_processes")
def test_results_do_not_depend_on_jobs(texts: Path, models: Callable[[str], Path], tmp_path: Path) -> None:
    rows = {}
    for jobs in (1, 2):
        options = BenchOptions(data=texts, model=str(models("bert")), seeds=1, recipe="robust", out=tmp_path, jobs=jobs)
        found, _ = prepare("score-ablation", options).run()
        rows[jobs] = [{key: row[key] for key in ("row", "parameters", "results")} for row in found.results["rows"]]
        shutil.rmtree(tmp_path / "cache")
    assert rows[1] == rows[2] and len(rows[1]) == 2
    assert "jobs must be" in refused("score-ablation", data=texts, model=str(models("bert")), jobs=0)


def test_results_of_another_recipe_model_or_data_are_not_replaced(
    folder: Path, models: Callable[[str], Path], tmp_path: Path
) -> None:
    given = {"data": folder, "model": str(models("bert")), "seeds": 1, "recipe": "robust", "out": tmp_path}
    prepare("score-ablation", BenchOptions(**given)).run()
    prepare("score-ablation", BenchOptions(**given | {"seeds": 2}))  # more of the same
    where = f"{tmp_path / 'score-ablation'} has results of"
    assert f"{where} another recipe; choose another --out" in refused("score-ablation", **given | {"recipe": "paper"})
    other = {"model": str(models("roberta"))}
    assert f"{where} another model" in refused("score-ablation", **given | other)
    write_lines(folder / "test.jsonl", [{"text": text} for text in random_texts(20, WORDS, 77)])
    assert f"{where} other data" in refused("score-ablation", **given)
    prepare("score-ablation", BenchOptions(**given), dry_run=True)
    prepare("beta-ablation", BenchOptions(**given))


def sampled(prepared: PreparedExperiment) -> dict[str, int]:
    return {one.role: one.options["samples"] for one in prepared.embeddings if one.mode == "output"}


def test_only_sets_to_score_are_sampled(texts: Path, models: Callable[[str], Path], tmp_path: Path) -> None:
    prepared = prepare("summarization", BenchOptions(data=texts, model=str(models("t5")), out=tmp_path))
    assert sampled(prepared) == {"id_train": 0, "aux": 0, "id_test": 2, "ood.CNN/DM": 2, "ood.extra": 2}


def test_every_store_is_described_once(
    texts: Path, models: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Counted(stores_module.Embedding):
        def __init__(self, *given: Any) -> None:
            made.append(given[:2])
            super().__init__(*given)

    monkeypatch.setattr(stores_module, "Embedding", Counted)
    prepared = prepare("beta-ablation", BenchOptions(data=texts, model=str(models("bert")), out=tmp_path), dry_run=True)
    assert len(made) == len(prepared.embeddings) == 5


def test_stores_with_samples_are_reused_but_not_made_without_need(
    texts: Path, models: Callable[[str], Path], tmp_path: Path
) -> None:
    options = BenchOptions(data=texts, model=str(models("t5")), out=tmp_path)
    assert set(sampled(prepare("summarization-supervised", options)).values()) == {0}
    first = prepare("summarization", options)
    assert first.model is not None
    embed_all(first.embeddings, first.experiment.task, first.model)
    then = prepare("summarization-supervised", options)
    assert [one.folder for one in then.embeddings] == [one.folder for one in first.embeddings]


def test_an_interrupted_embedding_is_resumed(
    texts: Path, models: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = BenchOptions(data=texts, model=str(models("bert")), seeds=1, out=tmp_path)
    prepared = prepare("summarization", options)
    finish = stores_module.Embedding.finish

    def interrupted(self: Any, counts: Any) -> None:
        if self.role == "aux":
            raise KeyboardInterrupt
        finish(self, counts)

    monkeypatch.setattr(stores_module.Embedding, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepared.run()
    monkeypatch.undo()
    done = [embedding.role for embedding in prepared.embeddings if embedding.done is not None]
    assert done == ["id_train", "id_test"]
    embed_all(prepared.embeddings, prepared.experiment.task, prepared.model)  # type: ignore[arg-type]
    assert all(embedding.done is not None for embedding in prepared.embeddings)


def test_stores_depend_on_data_and_model(folder: Path, models: Callable[[str], Path], tmp_path: Path) -> None:
    def stores(model: str) -> set[Path]:
        options = BenchOptions(data=folder, model=str(models(model)), out=tmp_path)
        return {embedding.folder for embedding in prepare("summarization", options, dry_run=True).embeddings}

    first = stores("bert")
    assert stores("bert") == first
    assert not stores("roberta") & first
    (folder / "train.jsonl").write_text((folder / "test.jsonl").read_text(encoding="utf-8"), encoding="utf-8")
    assert len(stores("bert") & first) == len(first) - 1


def test_experiments_that_use_a_whole_file_share_its_store(
    folder: Path, models: Callable[[str], Path], tmp_path: Path
) -> None:
    def store(name: str) -> Path:
        options = BenchOptions(data=folder, model=str(models("bert")), out=tmp_path)
        return prepare(name, options, dry_run=True).embeddings[0].folder

    (folder / MANIFEST).write_text(ID + OOD, encoding="utf-8")
    assert store("scaling") == store("summarization") == store("heads-vs-queries")
    (folder / MANIFEST).write_text(ID + OOD + "[settings]\ntrain = 20\n", encoding="utf-8")
    few = store("summarization")
    (folder / MANIFEST).write_text(ID + OOD + "[settings]\ntrain = 24\n", encoding="utf-8")
    assert store("summarization") != few


@pytest.mark.parametrize("name", ["audio", "translation", "language-model", "beta-ablation", "scaling"])
def test_profile_paper_is_planned_without_a_connection(
    name: str, models: Callable[[str], Path], tmp_path: Path
) -> None:
    if name == "audio":
        assert "the paper leaves it open" in refused(name, profile="paper", dry_run=True)
        return
    model = str(models("marian")) if name.startswith("translation") else None
    said = refused(name, profile="paper", data=tmp_path, model=model, dry_run=True)
    assert "must be downloaded by hand" in said and "--skip" in said
    if model is None:
        skipped = ["Clinical"] if name == "language-model" else ["Newsroom"]
        prepared = prepare(name, BenchOptions(profile="paper", skip=skipped, out=tmp_path / "out"), dry_run=True)
        assert "streamed" in str(prepared.cost.facts["download"])
        train = next(embedding for embedding in prepared.embeddings if embedding.role == "id_train")
        most = {"scaling": 255_057, "heads-vs-queries": 12_500}.get(name, 125_000)  # 0.8 of them are a split
        assert train.limit == most and train.options["max_tokens"] == 512
        assert prepared.data.settings.evaluated == 10_000 and prepared.data.settings.steps is None


def test_profile_paper_reads_local_copies_of_hub_data_sets(models: Callable[[str], Path], tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    sets = {
        "EdinburghNLP/xsum/train.jsonl": "document",
        "EdinburghNLP/xsum/test.jsonl": "document",
        "allenai/c4/en/train.jsonl": "text",
        "abisee/cnn_dailymail/3.0.0/test.jsonl": "article",
        "ctr4si/reddit_tifu/long/train.jsonl": "documents",
        "knkarthick/samsum/train.jsonl": "dialogue",
    }
    for number, (path, field) in enumerate(sets.items()):
        write_lines(hub / path, [{field: text} for text in random_texts(5, WORDS, number)])
    write_lines(hub / "newsroom" / "test.jsonl", [{"text": text} for text in random_texts(5, WORDS, 9)])
    import gzip

    packed = hub / "newsroom" / "test.jsonl.gz"
    packed.write_bytes(gzip.compress((hub / "newsroom" / "test.jsonl").read_bytes()))
    options = BenchOptions(profile="paper", data=hub, model=str(models("pegasus")), out=tmp_path / "out")
    prepared = prepare("beta-ablation", options)
    assert "download" not in prepared.cost.facts and prepared.data.ood == ["CNN/DM", "Newsroom", "Reddit", "Samsum"]
    wanted = [embedding for embedding in prepared.embeddings if embedding.mode == "input"]
    embed_all(wanted, prepared.experiment.task, prepared.model)  # type: ignore[arg-type]
    for embedding in wanted:
        store = TokenStore(embedding.folder)
        assert len(store) == 5 and store.encoder is not None and store.encoder["mode"] == "input"
    articles = [json.loads(line)["article"] for line in (hub / "abisee/cnn_dailymail/3.0.0/test.jsonl").open()]
    cnn = next(embedding for embedding in wanted if embedding.role == "ood.CNN/DM")
    stored = decode_texts(TokenStore(cnn.folder).select(slice(None)).channels["text"])
    assert sorted(map(str, stored)) == sorted(articles)


def test_the_number_of_scored_sequences_is_limited(folder: Path, models: Callable[[str], Path], tmp_path: Path) -> None:
    (folder / MANIFEST).write_text(
        f'id = "train.jsonl"\n{OOD}{SETTINGS}'.replace("evaluated = 16", "evaluated = 4"), encoding="utf-8"
    )
    prepared = prepare("score-ablation", BenchOptions(data=folder, model=str(models("bert")), seeds=1, out=tmp_path))
    findings, _ = prepared.run()
    (first, *_) = findings.results["rows"]
    assert {(row["n_id"], row["n_ood"]) for row in first["splits"][0]["rows"][:1]} == {(4, 4)}


def test_the_cost_grows_with_heads_and_queries(
    texts: Path, models: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = BenchOptions(data=texts, model=str(models("bert")), seeds=1, out=tmp_path)
    whole = prepare("heads-ablation", options, dry_run=True).cost.seconds
    monkeypatch.setattr(cost_module, "_EACH_FIT", 0.0)
    assert whole > prepare("heads-ablation", options, dry_run=True).cost.seconds
    costs = {name: prepare(name, options, dry_run=True).cost for name in ("scaling", "heads-ablation")}
    assert costs["scaling"].seconds > 100 * costs["heads-ablation"].seconds  # M T goes up to 16,384 instead of D = 16
    assert costs["scaling"].disk > 10 * costs["heads-ablation"].disk


def test_the_cost_of_bags(bags: Path, tmp_path: Path) -> None:
    options = BenchOptions(data=bags, seeds=3, out=tmp_path / "out")
    facts = prepare("multiple-instance", options, dry_run=True).cost.facts
    assert list(facts) == ["bags", "fit, input", "disk", "time"]
    assert facts["fit, input"] == "4 rows on 3 splits"
    assert str(facts["disk"]).startswith("about ") and str(facts["time"]).startswith("about 24 seconds on ")


def test_settings_default_to_those_of_the_paper(folder: Path) -> None:
    (folder / MANIFEST).write_text(ID + OOD + SETTINGS.replace("steps = 4\n", ""), encoding="utf-8")
    with pytest.raises(InputError, match="model"):
        prepare("translation", BenchOptions(data=folder))
    (folder / MANIFEST).write_text(ID + OOD, encoding="utf-8")
    from apood.experiments.paper.data_sets import read_manifest
    from apood.experiments.paper.tasks import SUMMARIZATION, TRANSLATION

    settings = read_manifest(folder, SUMMARIZATION).settings
    assert (settings.train, settings.aux, settings.evaluated, settings.steps) == (100_000, 10_000, 10_000, None)
    assert read_manifest(folder, TRANSLATION).settings.aux == 100_000
