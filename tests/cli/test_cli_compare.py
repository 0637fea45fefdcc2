"""`apood compare`, with a plan file and without."""

import json
import shlex
import shutil

import pytest
from typer.testing import CliRunner

from apood.cli.app import app
from apood.cli.next_steps import suggest_report
from apood.detectors.knn import KNN
from apood.detectors.length import Length
from apood.evaluation.comparison import ComparisonPlan

FILES = ["results.json", "table.html", "table.md", "table.tex"]


@pytest.fixture
def options(stores):
    """Two fast methods on the stores."""
    return [
        "--id-train", stores / "train", "--id-test", stores / "test", "--ood", f"other={stores / 'other'}",
        "--method", "knn", "--method", "length", "--splits", 2,
    ]  # fmt: skip


@pytest.fixture
def plan(stores, tmp_path):
    """The same as a file elsewhere."""
    path = tmp_path / "plan.toml"
    path.write_text(
        f"""
        splits = 2
        [data]
        id_train = "{stores / "train"}"
        id_test = "{stores / "test"}"
        ood.other = "{stores / "other"}"
        [[methods]]
        method = "knn"
        [[methods]]
        method = "length"
        """,
        encoding="utf-8",
    )
    return path


def figures(results):
    return [[split["rows"] for split in method["splits"]] for method in results["methods"]]


def test_options_and_plan_say_the_same(apood, options, plan, tmp_path):
    shown = apood("compare", *options, "--out", tmp_path / "a").stdout
    assert all(word in shown for word in ("knn", "length", "other", "mean", "AUROC", "over 2 splits"))
    assert f"Written to {tmp_path / 'a'}: results.json, table.md, table.tex, table.html." in shown.replace("\n", " ")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["cache", *FILES]
    printed = json.loads(apood("compare", plan, "--out", tmp_path / "b", "--json").stdout)
    by_options, by_plan = (json.loads((tmp_path / out / "results.json").read_text()) for out in "ab")
    assert printed == by_plan and figures(by_plan) == figures(by_options)
    assert [method["name"] for method in printed["methods"]] == ["knn", "length"]


def test_named_methods_learn_from_outliers_as_well_if_there_are_some(apood, stores, options, tmp_path):
    options = [*options, "--aux", stores / "held-out", "--method", "deep-sad"]
    printed = json.loads(apood("compare", *options, "--out", tmp_path, "--json").stdout)
    assert [method["name"] for method in printed["methods"]] == ["knn", "length", "deep-sad", "deep-sad, AUX"]


def test_outliers_that_no_method_learns_from_are_noticed(apood, stores, options, tmp_path):
    shown = apood("compare", *options, "--aux", stores / "held-out", "--out", tmp_path)
    assert "Warning: --aux is for methods that learn from outliers, and knn and length do not." in shown.stderr


def test_results_and_next_steps_name_the_texts_that_were_given(apood, model, files, tmp_path, monkeypatch):
    monkeypatch.chdir(files)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = ["--id-train", "train.jsonl", "--id-test", "test.jsonl", "--id-validation", "held-out.jsonl"]
    options += ["--ood", "other=other.jsonl", "--method", "knn", "--splits", 1, "--model", model, "--field", "text"]
    shown = apood("compare", *options, "--out", tmp_path / "out").stdout
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    names = {"id_train": "train", "id_test": "test", "id_validation": "held-out", "ood.other": "other"}
    assert results["stores"] == {key: f"{name}.jsonl" for key, name in names.items()}
    assert results["encoder"]["model"] == model.name and "folder" not in results["encoder"]
    monkeypatch.chdir(tmp_path)
    for name in ("train", "test", "held-out", "other"):
        shutil.copy(files / f"{name}.jsonl", tmp_path)
    commands = [shlex.split(line)[1:] for line in shown.splitlines() if line.startswith("  apood ")]
    assert "cache" not in " ".join(map(" ".join, commands))
    for command in commands:
        apood(*command)
    assert (tmp_path / "report.html").exists()


def test_the_commands_that_are_shown_embed_no_text_again(apood, model, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    sets = {name: files / f"{name}.jsonl" for name in ("train", "test", "held-out", "other")}
    options = ["--id-train", sets["train"], "--id-test", sets["test"], "--id-validation", sets["held-out"]]
    options += ["--ood", f"other={sets['other']}", "--method", "knn", "--splits", 1, "--model", model]
    shown = apood("compare", *options, "--cache", "my cache").stdout
    kept = sorted((tmp_path / "my cache" / "tokens").iterdir())
    for line in [line for line in shown.splitlines() if line.startswith("  apood ")]:
        apood(*shlex.split(line)[1:])
    assert sorted((tmp_path / "my cache" / "tokens").iterdir()) == kept
    assert (tmp_path / "report.html").exists() and not (tmp_path / "user" / "apood").exists()


@pytest.mark.parametrize("plan", [False, True])
def test_a_test_share_is_for_one_set_of_id_sequences(refused, stores, options, tmp_path, plan):
    given = [*options, "--test-share", 0.3]
    if plan:
        sets = f'id_train = "{stores / "train"}"\nid_test = "{stores / "test"}"\nood.other = "{stores / "other"}"'
        (tmp_path / "plan.toml").write_text(f"[data]\ntest_share = 0.3\n{sets}\n")
        given = [tmp_path / "plan.toml"]
    assert "share is for" in refused("compare", *given, "--out", tmp_path / "out")


def test_texts_are_not_embedded_for_a_comparison_that_is_refused(refused, model, files, tmp_path):
    options = ["--model", model, "--cache", tmp_path / "cache", "--out", tmp_path / "out"]
    options += ["--id-train", files / "train.jsonl", "--id-test", files / "test.jsonl"]
    for wrong, named in (
        (["--splits", 1], "ood"),
        (["--ood", f"other={files / 'other.jsonl'}", "--method", "kn"], "kn"),
    ):
        assert named in refused("compare", *options, *wrong)
        assert not (tmp_path / "cache").exists()


def test_the_best_method_can_be_reported_by_the_commands_that_are_shown(apood, stores, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = f"""
        splits = 1
        [data]
        id_train = "{stores / "train"}"
        id_test = "{stores / "test"}"
        id_validation = "{stores / "held-out"}"
        [data.ood]
        "other texts" = "{stores / "other"}"
        [[methods]]
        method = "knn"
        parameters = {{k = 2, average = true, normalize = "none"}}
        """
    (tmp_path / "plan.toml").write_text(plan, encoding="utf-8")
    shown = apood("compare", "plan.toml").stdout
    assert "To write a report about knn, k=2, average=True" in shown.replace("\n", " ")
    commands = [shlex.split(line)[1:] for line in shown.splitlines() if line.startswith("  apood ")]
    assert [command[0] for command in commands] == ["fit", "calibrate", "report"]
    for command in commands:
        apood(*command)
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["detector"]["method"] == "knn" and content["sets"][1]["name"] == "other texts"
    assert content["detector"]["parameters"] | {"k": "2", "average": "True"} == content["detector"]["parameters"]


def test_the_commands_for_a_class_of_the_users_import_it(apood, stores, tmp_path):
    shown = apood(
        "compare", "--id", stores / "train", "--ood", f"other={stores / 'other'}", "--method",
        "apood.detectors.length:Length", "--splits", 1, "--out", tmp_path / "out",
    ).stdout  # fmt: skip
    for command in ("calibrate", "report"):
        assert f"  apood --import apood.detectors.length:Length {command} detector" in shown


@pytest.mark.parametrize("texts", ["train", "aux"])
def test_the_commands_that_are_shown_name_the_model_if_any_of_the_fit_is_texts(capsys, texts):
    sets = {"train": "train", "aux": "aux"} | {texts: f"{texts}.jsonl"}
    suggest_report("knn", [], **sets, held_out="h", test="t", ood={"new": "n"}, model="minilm", field="body")
    fit, calibrate, report = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  apood"))
    assert fit.endswith(f"fit {sets['train']} --aux {sets['aux']} --model minilm --field body --out detector")
    assert "--field" not in calibrate + report


def test_what_a_report_lacks_is_named(apood, stores, tmp_path):
    shown = apood(
        "compare", "--id", stores / "train", "--ood", f"other={stores / 'other'}", "--method", "knn", "--splits", 1,
        "--out", tmp_path / "out",
    ).stdout  # fmt: skip
    assert "apood calibrate detector HELD-OUT" in shown and "--id TEST" in shown
    assert "HELD-OUT and TEST stand for in-distribution sequences" in shown.replace("\n", " ")


def test_every_option_reaches_the_plan(apood, stores, tmp_path):
    given = {
        "--id": stores / "train", "--id-validation": stores / "held-out", "--aux": stores / "test",
        "--ood": f"other={stores / 'other'}", "--method": "length", "--splits": 3, "--share": 0.9, "--test-share": 0.25,
        "--seed": 4, "--cache": tmp_path / "kept", "--out": tmp_path / "out", "--jobs": 1,
    }  # fmt: skip
    found = json.loads(apood("compare", *(part for pair in given.items() for part in pair), "--json").stdout)
    assert (found["splits"], found["share"], found["test_share"], found["seed"]) == (3, 0.9, 0.25, 4)
    assert set(found["stores"]) == {"id", "id_validation", "aux", "ood.other"}
    (method,) = found["methods"]
    assert method["accepted"]["mean"] > 50
    assert [split["rows"][0]["n_id"] for split in method["splits"]] == [30, 30, 30]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
    assert len(list((tmp_path / "kept").iterdir())) == 3


def test_a_dry_run_counts_the_fits_that_are_missing(apood, options, tmp_path):
    def count():
        return json.loads(apood("compare", *options, "--out", tmp_path / "out", "--dry-run", "--json").stdout)["fits"]

    before = count()
    assert before > 0 and not (tmp_path / "out" / "results.json").exists()
    apood("compare", *options, "--out", tmp_path / "out")
    assert count() == 0


def test_an_interrupted_command_says_how_to_go_on(apood, options, tmp_path, monkeypatch):
    fits = []
    original = KNN._fit

    def fit(self, *arguments):
        fits.append(self.name)
        original(self, *arguments)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(KNN, "_fit", fit)
    command = ["compare", *options, "--out", tmp_path / "out"]
    with monkeypatch.context() as patch:
        patch.setattr(Length, "_fit", interrupt)
        result = CliRunner().invoke(app, [str(part) for part in command])
    kept = tmp_path / "out" / "cache"
    assert result.exit_code == 130 and fits == ["knn"]
    assert result.stderr.startswith("Interrupted: ") and str(kept) in result.stderr and "same command" in result.stderr
    apood(*command)
    assert fits == ["knn", "knn"]  # the second is that of the other split


def test_a_method_that_fails_is_a_note(apood, options, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("a surprise")

    monkeypatch.setattr(Length, "_fit", fail)
    shown = apood("compare", *options, "--out", tmp_path / "out").stdout
    note = "– length: 2 of 2 splits failed, the first: split 1: RuntimeError: a surprise"
    assert note in " ".join(shown.split()) and note in (tmp_path / "out" / "table.md").read_text()


def test_a_store_that_was_interrupted_is_warned_of(apood, refused, options, plan, stores, tmp_path):
    store = shutil.copytree(stores / "train", tmp_path / "train")
    index = json.loads((store / "index.json").read_text())
    (store / "index.json").write_text(json.dumps(index | {"unfinished": True}))
    warning = f"Warning: The token store {store} is not complete"
    options[options.index("--id-train") + 1] = store
    plan.write_text(plan.read_text().replace(str(stores / "train"), "train"))
    for number, given in enumerate((options, [plan])):
        result = apood("compare", *given, "--out", tmp_path / str(number))
        assert (
            result.stderr.startswith(warning)
            and "120 sequences" in result.stderr
            and result.stderr.count("Warning") == 1
        )
    shutil.rmtree(store)
    assert refused("compare", *options, "--out", tmp_path / "2").startswith("id_train: There is no token store")


def test_the_help_shows_the_defaults_of_the_plan(apood):
    shown = " ".join(apood("compare", "--help", env={"COLUMNS": "200", "TERM": "dumb"}).stdout.split())
    for name in ("splits", "share", "test_share", "seed"):
        assert f"{getattr(ComparisonPlan, name)} by default" in shown
    assert "[default: (cache in --out, and ~/.cache/apood for texts)]" in shown and "[[PLAN]]" not in shown


def test_refusals(refused, options, plan, stores, tmp_path):
    out = ["--out", tmp_path / "out"]
    assert "give a plan file, or --id-train, --id-test and --ood" in refused("compare", *out)
    assert f"leave out --splits, or write it into {plan}" in refused("compare", plan, "--splits", 3, *out)
    assert "leave out --method" in refused("compare", plan, "--method", "knn", *out)
    assert "There is no method 'svm'" in refused("compare", *options, "--method", "svm", *out)
    assert "--ood takes NAME=STORE_OR_TEXTS" in refused("compare", *options, "--ood", "x", *out)
    assert "share must be a finite number > 0 and <= 1" in refused("compare", *options, "--share", 2, *out)
    assert "or id alone, got id and id_train and id_test" in refused("compare", *options, "--id", stores / "test", *out)
    plan.write_text("[data]\nid = 3")
    assert refused("compare", plan, *out).startswith(f"{plan}: id in [data] must be")
    assert not (tmp_path / "out" / "results.json").exists()
    (tmp_path / "file").write_text("")
    assert "Nothing can be written" in refused("compare", *options, "--out", tmp_path / "file")
