"""`apood build`: from a file of texts to a detector in one command, and commands that take texts instead of stores."""

import io
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import apood as library
from apood import TextDetector, TokenStore
from apood.cli.stores import StoreFinder
from apood.encoders.text.encoder import TextEncoder


@pytest.fixture(scope="module")
def built(apood, model, files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    result = apood(
        "build", files / "train.jsonl", "--model", model, "--out", folder / "detector", "--method", "mahalanobis",
        "--accept", 0.9, "--hold-out", 0.25, "--keep-stores", folder / "stores",
    )  # fmt: skip
    return folder, result


def test_the_detector_is_that_of_python(built, model, texts):
    folder, result = built
    detector = library.load(folder / "detector")
    same = TextDetector(model, library.Mahalanobis(), accept=0.9, hold_out=0.25).fit(texts["train"])
    assert isinstance(detector, TextDetector)
    assert (detector.score_samples(texts["test"]) == same.score_samples(texts["test"])).all()
    assert "Learnt from 90 texts" in result.stdout and "held out 30 to set the threshold" in result.stdout
    assert len(TokenStore(folder / "stores" / "id")) == 120
    assert not (folder / "detector.building").exists()


def test_the_example_that_it_prints_works(built):
    folder, result = built
    (example,) = [line.strip() for line in result.stdout.splitlines() if line.startswith("  ")]
    program = f"{sys.executable} -m apood"
    done = subprocess.run(
        example.replace("| apood", f"| {program}"), shell=True, check=True, capture_output=True, text=True, cwd=folder
    )
    assert json.loads(done.stdout)["decision"] in ("ID", "OOD")


def test_the_example_imports_a_class_of_ones_own(apood, model, files, tmp_path):
    named = ("--model", model, "--method", "apood.detectors.length:Length", "--json")
    found = json.loads(apood("build", files / "train.jsonl", *named, "--out", tmp_path / "own").stdout)
    assert f"| apood --import apood.detectors.length:Length score {tmp_path / 'own'} -" in found["example"]


def test_an_interruption_keeps_what_was_embedded(apood, model, files, tmp_path, monkeypatch):
    command = ("build", files / "train.jsonl", "--model", model, "--out", tmp_path / "d", "--method", "knn")
    with monkeypatch.context() as patch:
        patch.setattr(library.KNN, "_fit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        result = _run(*command)
    assert result.exit_code == 130 and f"what is done is kept in {tmp_path / 'd.building'}" in result.stderr
    with monkeypatch.context() as patch:
        patch.setattr(TextEncoder, "run", None)  # nothing is left to embed
        apood(*command)
    assert not (tmp_path / "d.building").exists()


def test_stores_are_kept_all_at_once(apood, model, files, tmp_path, monkeypatch):
    """A kill while they are kept leaves none, and what was embedded for the next run."""
    command = ("build", files / "train.jsonl", "--model", model, "--out", tmp_path / "detector")
    command += ("--method", "binary-logits", "--aux", files / "other.jsonl", "--keep-stores", tmp_path / "stores")
    copy, copied = shutil.copytree, []

    def stop_at_the_second(*args, **options):
        if copied:
            raise KeyboardInterrupt
        copied.append(copy(*args, **options))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", stop_at_the_second)
        assert _run(*command).exit_code == 130
    assert copied and not (tmp_path / "stores").exists()
    monkeypatch.setattr(TextEncoder, "_run_batch", None)  # nothing is embedded again
    apood(*command)
    assert sorted(path.name for path in (tmp_path / "stores").iterdir()) == ["aux", "id"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["detector", "stores"]


def test_a_build_goes_on_with_the_stores_that_it_kept_and_with_no_others(
    apood, refused, model, files, stores, tmp_path, monkeypatch
):
    kept = tmp_path / "stores"
    command = ("build", files / "train.jsonl", "--model", model, "--out", tmp_path / "detector", "--method", "knn")
    command += ("--keep-stores", kept)
    with monkeypatch.context() as patch:
        patch.setattr(TextDetector, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert _run(*command).exit_code == 130
    assert len(TokenStore(kept / "id")) == 120
    monkeypatch.setattr(TextEncoder, "_run_batch", None)  # nothing is embedded again
    (kept / "id").rename(tmp_path / "own")
    shutil.copytree(stores / "test", kept / "id")
    assert f"{kept} already exists and is not empty" in refused(*command)
    shutil.rmtree(kept / "id")
    (tmp_path / "own").rename(kept / "id")
    apood(*command)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["detector", "stores"]


def test_texts_that_are_too_long_are_counted(apood, model, texts, tmp_path):
    """They are no bad records, but have no tokens, and are always refused."""
    (tmp_path / "texts.txt").write_text("\n".join([*texts["train"], "word1 " * 2000, "", "word1 " * 3000]))
    command = ("build", tmp_path / "texts.txt", "--model", model, "--method", "knn", "--skip-bad", "--out")
    result = apood(*command, tmp_path / "d")
    assert result.stderr.count("Skipped") == 1
    assert "Left out 2 texts of too many tokens. The detector refuses such texts" in result.stdout
    assert json.loads(apood(*command, tmp_path / "e", "--json").stdout)["too_long"] == 2


def test_a_detector_of_conversations_learns_from_the_text_that_the_service_judges(
    apood, refused, model, texts, tmp_path
):
    rows = [
        [
            {"role": "system", "content": "rules"},
            {"role": "user", "content": "first"},
            {"role": "user", "content": text},
        ]
        for text in texts["train"]
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": own}) + "\n" for own in rows))
    command = ("build", tmp_path / "chats.jsonl", "--model", model, "--field", "messages", "--method", "knn", "--out")
    apood(*command, tmp_path / "d", "--chat", "last-user")
    detector = library.load(tmp_path / "d")
    same = TextDetector(model, library.KNN()).fit(texts["train"])
    assert (detector.score_samples(texts["test"]) == same.score_samples(texts["test"])).all()
    assert detector.facts.chat == "last-user"
    assert "must be a string, got a list" in refused(*command, tmp_path / "e")
    rows[0][-1]["content"] = [{"type": "image_url"}]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": own}) + "\n" for own in rows))
    assert "is not a conversation to learn from: A message has a part that is not text" in refused(
        *command, tmp_path / "e", "--chat", "last-user"
    )


def test_the_default_has_forms(apood, refused, model, files, tmp_path):
    command = ("build", files / "train.jsonl", "--model", model, "--out", tmp_path / "d")
    for option in ("--fast", "--beginnings", "--sentences"):
        assert f"{option} is for the default method" in refused(*command, option, "--method", "knn")
    apood(*command, "--fast", "--beginnings", "--method", "fusion")  # the name of the default
    detector = library.load(tmp_path / "d").detector
    assert detector.beginnings and [member.name for member in detector.members_] == ["mahalanobis-knn", "knn"]


def test_a_text_is_refused_for_one_sentence(apood, model, tmp_path):
    """The words of a text are from one quarter of the vocabulary, and those of a foreign sentence from another."""
    dice = random.Random(0)

    def make_text(planted=False):
        own, other = dice.sample(range(4), 2)
        quarters = [own, own, own, own]
        if planted:
            quarters[dice.randrange(4)] = other
        return " ".join(" ".join(f"word{10 * q + dice.randrange(10)}" for _ in range(6)) + " ." for q in quarters)

    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps({"text": make_text()}) for _ in range(120)))
    apood("build", tmp_path / "train.jsonl", "--model", model, "--fast", "--sentences", "--out", tmp_path / "d")
    detector = library.load(tmp_path / "d")
    assert [member.name for member in detector.detector.members_][-1] == "coherence"
    genuine, foreign = (detector.score_samples([make_text(planted) for _ in range(40)]) for planted in (False, True))
    assert (foreign[:, None] < genuine).mean() > 0.75
    why = detector.explain([make_text(planted=True)])[0]
    assert len(why.sentences) == 4 and max(own.suspicion for own in why.sentences) > 1


def test_a_detector_that_has_seen_no_short_texts_says_so(apood, model, texts, tmp_path):
    long = [" ".join(texts["train"][number : number + 6]) for number in range(len(texts["train"]) - 6)]
    (tmp_path / "long.txt").write_text("\n".join(long))
    command = ("build", tmp_path / "long.txt", "--model", model, "--fast", "--out")
    assert "may refuse a text of fewer than" in apood(*command, tmp_path / "d").stdout
    assert "may refuse" not in apood(*command, tmp_path / "e", "--beginnings").stdout


def test_a_folder_of_the_user_is_never_work(refused, model, files, tmp_path):
    mine = tmp_path / "d.building"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    command = ("build", files / "train.jsonl", "--model", model, "--out", tmp_path / "d", "--method", "knn")
    assert f"{mine} is needed" in refused(*command)
    assert (mine / "notes.txt").read_text() == "mine" and not (tmp_path / "d").exists()


def _run(*arguments):
    from typer.testing import CliRunner

    from apood.cli.app import app

    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_bad_input_is_refused_before_the_model_is_opened(refused, files, tmp_path):
    few = tmp_path / "few.txt"
    few.write_text("word1\n" * 20)
    command = ("--model", "/nowhere", "--out", tmp_path / "d")
    assert "give at least 95 texts" in refused("build", few, *command)
    assert "does not use auxiliary outliers" in refused("build", few, *command, "--method", "knn", "--aux", few)
    assert "no field 'body'" in refused("build", files / "train.jsonl", *command, "--field", "body")
    assert "There is no folder '/nowhere'" in refused("build", files / "train.jsonl", *command)
    few.write_text("word1\n\n")
    assert "skip such records with --skip-bad" in refused("build", few, *command)
    assert list(tmp_path.iterdir()) == [few]


def test_one_file_in_two_roles_is_refused(refused, model, files, tmp_path):
    train = files / "train.jsonl"
    sentence = refused("build", train, "--aux", train, "--model", model, "--out", tmp_path / "d", "--method", "ap-ood")
    assert "The AUX sequences are the ID sequences" in sentence


class TestTexts:
    """Commands that take texts wherever they take token stores."""

    @pytest.fixture(scope="class")
    def cache(self, tmp_path_factory):
        return tmp_path_factory.mktemp("cache")

    @pytest.fixture(scope="class")
    def detector(self, apood, model, files, cache, tmp_path_factory):
        out = tmp_path_factory.mktemp("detectors") / "knn"
        apood("fit", files / "train.jsonl", "--model", model, "--cache", cache, "--method", "knn", "--out", out)
        apood("calibrate", out, files / "held-out.jsonl", "--cache", cache, "--accept", 0.9)
        return out

    def test_decisions_are_those_of_stores(self, apood, detector, stores, tmp_path):
        apood("fit", stores / "train", "--method", "knn", "--out", tmp_path / "knn")
        apood("calibrate", tmp_path / "knn", stores / "held-out", "--accept", 0.9)
        one, other = (library.load(folder) for folder in (detector, tmp_path / "knn"))
        assert one.threshold_ == pytest.approx(other.threshold_)

    def test_evaluate_says_what_the_threshold_does(self, apood, detector, files, stores, cache):
        options = ["--id", files / "test.jsonl", "--ood", f"other={files / 'other.jsonl'}", "--cache", cache]
        shown = apood("evaluate", detector, *options).stdout
        rows = json.loads(apood("evaluate", detector, *options, "--json").stdout)
        from_stores = ["--id", stores / "test", "--ood", f"other={stores / 'other'}", "--json"]
        assert rows == json.loads(apood("evaluate", detector, *from_stores).stdout)
        sentence = f"{rows[0]['id_accepted']:.1f}% of ID accepted; {rows[0]['ood_refused']:.1f}% of other refused."
        assert f"At the threshold of knn: {sentence}" in " ".join(shown.split())
        accepted = library.load(detector).predict(TokenStore(stores / "test")) == 1
        assert rows[0]["id_accepted"] == pytest.approx(100 * accepted.mean())

    def test_compare_embeds_texts_once(self, apood, model, files, cache, tmp_path, monkeypatch):
        options = ["--id-train", files / "train.jsonl", "--id-test", files / "test.jsonl", "--ood"]
        options += [f"other={files / 'other.jsonl'}", "--method", "knn", "--splits", 1, "--model", model]
        apood("compare", *options, "--cache", cache, "--out", tmp_path / "first")
        monkeypatch.setattr(TextEncoder, "run", None)  # everything is in the cache
        apood("compare", *options, "--cache", cache, "--out", tmp_path / "again")
        plan = tmp_path / "plan.toml"
        plan.write_text(
            f'splits = 1\n[data]\nid_train = "{files / "train.jsonl"}"\nid_test = "{files / "test.jsonl"}"\n'
            f'[data.ood]\nother = "{files / "other.jsonl"}"\n[[methods]]\nmethod = "knn"\n'
        )
        apood("compare", plan, "--model", model, "--cache", cache, "--out", tmp_path / "planned")

    def test_commands_share_what_is_embedded(self, apood, model, files, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
        train, test, other = (files / f"{name}.jsonl" for name in ("train", "test", "other"))
        apood("build", train, "--model", model, "--method", "knn", "--out", tmp_path / "first")
        sets = ["--id", test, "--ood", f"other={other}", "--json"]
        evaluated = apood("evaluate", tmp_path / "first", *sets).stdout
        compared = ["--id-train", train, "--id-test", test, "--ood", f"other={other}", "--method", "knn"]
        compared += ["--model", model, "--splits", 1]
        embedded = []
        run = TextEncoder.run
        monkeypatch.setattr(TextEncoder, "run", lambda self, given: embedded.append(run(self, given)) or embedded[-1])
        apood("compare", *compared, "--out", tmp_path / "comparison")
        assert sum(map(len, embedded)) <= 120 + 2, "of the sets of evaluate, none is embedded again"
        monkeypatch.setattr(
            TextEncoder, "run", lambda self, given: run(self, given) if len(given.texts) == 1 else 1 / 0
        )
        apood("build", train, "--model", model, "--method", "knn", "--out", tmp_path / "second")
        assert apood("evaluate", tmp_path / "second", *sets).stdout == evaluated
        assert apood("calibrate", tmp_path / "second", test)

    def test_a_store_without_a_channel_is_not_shared(self, apood, models, files, tmp_path):
        tokens, model = ("--cache", tmp_path / "kept" / "tokens"), ("--model", models("llama"))
        apood("fit", files / "train.jsonl", *model, *tokens, "--method", "knn", "--out", tmp_path / "knn")
        sets = ("--id", files / "test.jsonl", "--ood", f"other={files / 'other.jsonl'}")
        apood("evaluate", tmp_path / "knn", *sets, *tokens)
        options = ("--method", "perplexity", "--splits", 1, "--cache", tmp_path / "kept", "--out", tmp_path / "out")
        apood("compare", *sets, *model, *options)

    @pytest.mark.usefixtures("quick_processes")
    @pytest.mark.parametrize("command", ["compare", "select"])
    def test_a_dry_run_embeds_a_few_texts_and_keeps_nothing(self, apood, model, files, tmp_path, monkeypatch, command):
        texts = files / "train.jsonl"
        options = ("--id", texts, "--ood", f"other={files / 'other.jsonl'}", "--splits", 2)
        if command == "select":
            options = (texts, "--aux", files / "other.jsonl", "--grid", "k=1,2", "--jobs", 1)
        options += ("--method", "knn", "--model", model, "--out", tmp_path / "out", "--cache", tmp_path / "cache")
        embedded = []
        run = TextEncoder.run
        monkeypatch.setattr(TextEncoder, "run", lambda self, given: embedded.append(run(self, given)) or embedded[-1])
        facts = json.loads(apood(command, *options, "--dry-run", "--json").stdout)
        lines = sum(len((files / f"{name}.jsonl").read_text().splitlines()) for name in ("train", "other"))
        assert facts["texts_to_embed"] == lines > sum(map(len, embedded))
        assert facts["fits"] == (2 if command == "compare" else 3)
        assert not any(path.is_file() for path in tmp_path.rglob("*"))
        apood(command, *options)
        again = ("--dry-run", "--json", *(("--force",) if command == "select" else ()))
        assert set(json.loads(apood(command, *options, *again).stdout).values()) == {0}

    def test_options_must_fit_together(self, refused, files, stores, model, tmp_path):
        texts, out = files / "train.jsonl", tmp_path / "d"
        assert "name a model, as in --model minilm." in refused("fit", texts, "--out", out)
        assert "--model is for texts" in refused("fit", stores / "train", "--out", out, "--model", model)
        assert "There is no token store" in refused("fit", tmp_path / "nothing", "--out", out)

    def test_a_second_reading_of_standard_input_is_refused_before_the_first(
        self, refused, model, detector, files, tmp_path, monkeypatch
    ):
        for module in ("stores", "build"):
            monkeypatch.setattr(f"apood.cli.{module}.read_text_records", lambda *_, **__: pytest.fail("it was read"))
        copy = shutil.copytree(detector, tmp_path / "copy")
        plan = tmp_path / "plan.toml"
        plan.write_text('[data]\nid = "-"\n[data.ood]\nother = "-"\n')
        texts = files / "test.jsonl"
        for command in (
            ("fit", "-", "--aux", "-", "--method", "deep-sad", "--model", model, "--out", tmp_path / "d"),
            ("build", "-", "--aux", "-", "--method", "deep-sad", "--model", model, "--out", tmp_path / "d"),
            ("select", "-", "--aux", "-", "--method", "knn", "--model", model, "--out", tmp_path / "d"),
            ("compare", "--id", "-", "--ood", "other=-", "--model", model, "--out", tmp_path / "d"),
            ("compare", plan, "--model", model, "--out", tmp_path / "d"),
            ("evaluate", detector, "--id", "-", "--ood", "other=-"),
            ("evaluate", detector, copy, "--id", "-", "--ood", f"other={texts}"),
            ("report", detector, "--id", texts, "--ood", "a=-", "--new", "b=-", "--out", tmp_path / "d.html"),
        ):
            assert "Standard input (-) can be read only once" in refused(*command)

    def test_a_model_that_moved_is_named_by_its_new_folder(self, apood, model, files, tmp_path):
        options = (files / "train.jsonl", "--cache", tmp_path / "cache", "--method", "knn")
        shutil.copytree(model, tmp_path / "old")
        apood("fit", *options, "--model", tmp_path / "old", "--out", tmp_path / "first")
        (tmp_path / "old").rename(tmp_path / "new")
        apood("fit", *options, "--model", tmp_path / "new", "--out", tmp_path / "second")
        apood("score", tmp_path / "second", files / "test.jsonl")

    def test_the_place_of_the_cache_is_said_once(self, model, files, tmp_path, monkeypatch):
        terminal = io.StringIO()
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr("sys.stderr", terminal)
        for _ in range(2):
            stores = StoreFinder.of_model(str(model), tmp_path, None)
            for name in ("train", "test"):
                stores.find(files / f"{name}.jsonl")
        assert terminal.getvalue().count(f"Embedded texts are kept in {tmp_path} (") == 1

    def test_the_users_cache_is_the_default(self, apood, model, files, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
        apood("fit", files / "train.jsonl", "--model", model, "--method", "knn", "--out", tmp_path / "knn")
        (store,) = Path(tmp_path / "user" / "apood" / "tokens").glob("*/store")
        assert len(TokenStore(store)) == 120


def test_inspect_shows_what_the_detector_was_made_of(apood, built):
    folder, _ = built
    facts = json.loads(apood("inspect", folder / "detector", "--json").stdout)
    assert facts["training"]["documents"] == 90 and facts["calibration"]["documents"] == 30
    assert facts["versions"]["apood"] == library.__version__ and facts["training"]["date"].startswith("20")
    shown = apood("inspect", folder / "detector").stdout
    assert "documents: 90" in shown and "whitening_" not in shown
