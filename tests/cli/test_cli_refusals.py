"""Every wrong use of a command ends with one sentence that says what is wrong, before any work."""

import json
import shutil

import pytest
import torch

from apood.support.files import reserve_path
from apood.tokens.batch import TokenBatch
from apood.tokens.writer import TokenStoreWriter


def make_store(folder, sequences, **options):
    with TokenStoreWriter(folder, dim=sequences[0].shape[1], **options) as writer:
        writer.append(TokenBatch.from_sequences(sequences))
    return folder


FIT_KNN = "fit no --out o --method knn"
EMBED = "--model m --out o"


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        ("fti", ["'fti'"]),
        ("fit", ["'STORE_OR_TEXTS'", "see `apood fit --help`."]),
        ("fit store", ["'--out'"]),
        ("methods --jsn", ["--jsn"]),
        (f"embed a.txt {EMBED} --limit 0", ["--limit"]),
        (f"embed a.txt {EMBED} --dtype int8", ["--dtype"]),
        (f"embed no.txt {EMBED}", ["'no.txt'"]),
        (f"embed . {EMBED}", ["'.' is a folder", "'*.jsonl'"]),
        (f"embed - - {EMBED}", ["tandard input", "once"]),
        (f"embed - {EMBED}", ["no text in standard input"]),
        (f"embed xsun:train {EMBED}", ["'xsun:train' (did you mean 'xsum'?)"]),
        ("datasets xsun", ["'xsun' (did you mean 'xsum'?)"]),
        ("fit no --out o --method magic", ["'magic'", "ap-ood, "]),
        ("fit no --out o --method KNN", ["'KNN' (did you mean 'knn'?)"]),
        ("fit no --out o", ["token store 'no'"]),
        ("fit no --out new/deep/o", ["token store 'no'"]),
        ("fit no --out .", ["cannot be replaced"]),
        ("score no store --out new/scores.csv", ["detector 'no'"]),
        ("compare --id-train no --id-test no2 --ood x=no3 --out new/c", ["'no'"]),
        ("fit a.txt --out o", ["a.txt", "folder"]),
        (f"{FIT_KNN} --aux x", ["knn", "leave out --aux"]),
        (f"{FIT_KNN} --set k", ["--set takes key=value, got 'k'"]),
        ("fit no --out o --method ap-ood --set temperature=1", ["(it is called 'sharpness' now)", "sharpness=null"]),
        (
            f"{FIT_KNN} --set kk=3",
            ["knn has no parameter 'kk' (did you mean 'k'?)", "k=5, normalize=pooled, average=false, view=tokens."],
        ),
        (f"{FIT_KNN} --set normalize=token", ["tokens or pooled or none, got 'token' (did you mean 'tokens'?)"]),
        (f"{FIT_KNN} --set k=0", ["k must be at least 1, got 0"]),
        (
            f"{FIT_KNN} --set k=99999999999999999999",
            ["k must be at most 9223372036854775807, got 99999999999999999999"],
        ),
        ("fit no --out o --method ap-ood --set seed=99999999999999999999", ["seed must be at most"]),
        (f"{FIT_KNN} --set k=1 --set k=2", ["'k' is set twice"]),
        ("fit no --out o --method length --set k=3", ["no parameter 'k': it has none"]),
        ("calibrate no store", ["detector 'no'"]),
        ("calibrate a.txt store", ["a.txt", "folder"]),
        ("calibrate . store", ["config.json"]),
        ("score no store", ["detector 'no'"]),
        ("score no store --out scores.xml", ["scores.xml", ".jsonl, .csv, .parquet"]),
        ("score no a.txt --engine ray --out o --force", ["--force is for --engine plain"]),
        ("embed a.txt --model no --out o --engine ray --limit 3", ["--limit is for --engine plain"]),
        ("fit a.txt --model no --out o --engine ray --sample 9 --aux no", ["--aux is for --engine plain"]),
        ("evaluate no --id i --ood o", ["--ood takes NAME=STORE_OR_TEXTS, got 'o'"]),
        ("evaluate no --id i --ood o=", ["--ood takes NAME=STORE_OR_TEXTS, got 'o='"]),
        ("evaluate no --id i --ood o=a --ood o=b", ["Two OOD sets are called 'o'"]),
        ("evaluate no --id i --ood mean=a", ["cannot be called 'mean'"]),
        ("evaluate no --id i --ood o=a --json --markdown", ["--json", "--markdown"]),
        ("report no --id i --new o --out p.html", ["--new takes NAME=STORE_OR_TEXTS, got 'o'"]),
        ("inspect no", ["'no'"]),
        ("inspect .", ["index.json", "config.json"]),
        ("bench toy --seed -1", ["--seed"]),
        ("bench toy --out a.txt", ["a.txt/results.json"]),
        ("demo --out a.txt", ["a.txt/detector"]),
    ],
)
def test_bad_usage(refused, command, facts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("word1\n")
    sentence = refused(*command.split())
    assert [fact for fact in facts if fact not in sentence] == [], sentence
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_embed_refuses_a_missing_field_before_it_loads_the_model(refused, files, tmp_path):
    sentence = refused("embed", files / "test.jsonl", "--field", "body", "--model", "none", "--out", tmp_path / "o")
    assert all(fact in sentence for fact in ("no field 'body'", "'text', 'number'", "--field"))


def test_embed_refuses_a_folder_without_a_model(refused, files, tmp_path):
    sentence = refused("embed", files / "test.jsonl", "--model", files, "--out", tmp_path / "o")
    assert "has no config.json" in sentence


def test_embed_refuses_to_resume_with_other_texts(refused, stores, model, files, tmp_path):
    store = shutil.copytree(stores / "test", tmp_path / "store")
    sentence = refused("embed", files / "other.jsonl", "--model", model, "--out", store, "--resume")
    assert str(store) in sentence and "resume" in sentence


def test_embed_refuses_to_resume_with_a_smaller_limit(apood, refused, stores, model, files, tmp_path):
    store = shutil.copytree(stores / "test", tmp_path / "store")
    command = ("embed", files / "test.jsonl", "--model", model, "--out", store, "--resume", "--limit")
    assert all(fact in refused(*command, 7) for fact in (str(store), "40 texts", "--limit 7"))
    assert "40 were there before" in apood(*command, 40).stdout


def test_fit_replaces_a_detector_only_when_forced(apood, refused, fitted, stores, tmp_path):
    out = shutil.copytree(fitted, tmp_path / "detector")
    command = ("fit", stores / "train", "--out", out, "--method", "length")
    assert str(out) in refused(*command) and "--force" in refused(*command)
    apood(*command, "--force")
    assert json.loads(apood("inspect", out, "--json").stdout)["method"] == "length"


def test_fit_never_replaces_anything_but_a_detector(refused, model, stores, tmp_path):
    out = shutil.copytree(model, tmp_path / "model")  # it has a config.json, too
    before = sorted(path.name for path in out.iterdir())
    assert str(out) in refused("fit", stores / "train", "--out", out, "--force")
    assert sorted(path.name for path in out.iterdir()) == before


def test_fit_refuses_a_place_that_cannot_be_written(refused, stores, files):
    sentence = refused("fit", stores / "train", "--out", files / "train.jsonl" / "detector")
    assert str(files / "train.jsonl" / "detector") in sentence


def test_fit_refuses_empty_sequences_and_other_dimensions(refused, stores, tmp_path):
    empty = make_store(tmp_path / "empty", [torch.ones(2, 16), torch.ones(0, 16)])
    assert "equence 1 of the ID data" in refused("fit", empty, "--out", tmp_path / "o")
    narrow = make_store(tmp_path / "narrow", [torch.ones(2, 3)])
    sentence = refused("fit", stores / "train", "--aux", narrow, "--out", tmp_path / "o")
    assert "D=3" in sentence and "D=16" in sentence


@pytest.mark.parametrize(
    ("method", "channel", "remedy"),
    [
        ("perplexity", "token_logprobs", "for causal language models, and in --mode output or reference."),
        ("entropy", "sample_logprobs", "with --samples, for models that generate."),
        ("msp", "logits", "for classifiers."),
    ],
)
def test_fit_says_where_a_channel_comes_from(refused, stores, tmp_path, method, channel, remedy):
    sentence = refused("fit", stores / "train", "--method", method, "--out", tmp_path / "o")
    assert f"The method {method} needs {channel}, which the token store {stores / 'train'} lacks" in sentence
    assert "tokens, input_ids, sentences, summary, text, window: `apood embed` stores it" in sentence
    assert sentence.endswith(remedy)


def test_evaluate_refuses_one_store_in_two_roles(refused, fitted, stores, tmp_path):
    copy = shutil.copytree(stores / "test", tmp_path / "copy")
    sentence = refused("evaluate", fitted, "--id", stores / "test", "--ood", f"x={copy}")
    assert "OOD x sequences are the ID sequences" in sentence


@pytest.mark.parametrize("lines", [["{"], ["{", '{"text": 3}']])
def test_embed_refuses_input_without_any_good_record(refused, model, tmp_path, lines):
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    sentence = refused("embed", tmp_path / "bad.jsonl", "--model", model, "--out", tmp_path / "new" / "o", "--skip-bad")
    assert "be used: " in sentence and "bad.jsonl" in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


@pytest.mark.parametrize(
    "command", ["fit STORE --out OUT --method knn", "select STORE --aux AUX --out OUT --method knn"]
)
def test_a_place_that_another_command_writes_to_is_refused_at_once(refused, stores, tmp_path, command):
    names = {"STORE": stores / "train", "AUX": stores / "other", "OUT": tmp_path / "out"}
    with reserve_path(tmp_path / "out"):
        assert "Another process is writing to" in refused(*(names.get(word, word) for word in command.split()))
    assert not list(tmp_path.iterdir())


def test_calibrate_refuses_a_rate_that_makes_no_sense(refused, fitted, stores):
    assert "accept" in refused("calibrate", fitted, stores / "test", "--accept", 1)
    sentence = refused("calibrate", fitted, stores / "test", "--accept", 0.99)
    assert all(fact in sentence for fact in ("0.99", "99 calibration scores", "40"))


def test_score_asks_for_the_folder_of_a_lost_encoder(apood, refused, model, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lost = shutil.copytree(model, tmp_path / "lost" / "tiny-bert")
    apood("embed", files / "test.jsonl", "--model", lost, "--out", "store")
    apood("fit", "store", "--method", "knn", "--out", "detector")
    shutil.rmtree(lost)
    sentence = refused("score", "detector", files / "test.jsonl")
    assert "'tiny-bert'" in sentence and "--model" in sentence
    apood("score", "detector", files / "test.jsonl", "--model", model)


def test_score_refuses_another_encoder_and_names_both(apood, refused, calibrated, other_model, files):
    sentence = refused("score", calibrated, files / "test.jsonl", "--model", other_model)
    identity = json.loads(apood("inspect", calibrated, "--json").stdout)["encoder"]
    assert identity["fingerprint"][:12] in sentence and sentence.count("fingerprint") == 2


def test_score_refuses_a_store_of_another_encoder(apood, refused, calibrated, other_model, files, tmp_path):
    apood("embed", files / "test.jsonl", "--model", other_model, "--out", tmp_path / "store")
    assert "mahalanobis detector" in refused("score", calibrated, tmp_path / "store")


def test_texts_need_a_detector_that_knows_its_encoder(apood, refused, model, files, tmp_path):
    store = make_store(tmp_path / "store", [torch.randn(3, 16, generator=torch.Generator()) for _ in range(5)])
    apood("fit", store, "--method", "length", "--out", tmp_path / "detector")
    sentence = refused("score", tmp_path / "detector", files / "test.jsonl", "--model", model)
    assert "encoder" in sentence and "token store" in sentence


def test_texts_need_a_detector_of_a_text_encoder(apood, refused, model, files, tmp_path):
    sequences = [torch.randn(3, 16, generator=torch.Generator()) for _ in range(5)]
    store = make_store(tmp_path / "store", sequences, encoder={"model": "protein-lm", "fingerprint": "ab"})
    apood("fit", store, "--method", "length", "--out", tmp_path / "detector")
    for options in ((), ("--model", model)):
        sentence = refused("score", tmp_path / "detector", files / "test.jsonl", *options)
        assert "model protein-lm, fingerprint ab" in sentence and "token store" in sentence
    apood("score", tmp_path / "detector", store)


def test_score_refuses_a_store_without_sequences(refused, calibrated, tmp_path):
    with TokenStoreWriter(tmp_path / "store", dim=16):
        pass
    sentence = refused("score", calibrated, tmp_path / "store", "--out", tmp_path / "scores.csv")
    assert str(tmp_path / "store") in sentence and "no sequences" in sentence
    assert not (tmp_path / "scores.csv").exists()


def test_demo_replaces_nothing_but_a_detector(refused, tmp_path):
    foreign = tmp_path / "demo" / "detector"
    foreign.mkdir(parents=True)
    (foreign / "notes.txt").write_text("mine")
    assert "notes.txt" in refused("demo", "--out", tmp_path / "demo")
    assert [path.name for path in (tmp_path / "demo").rglob("*")] == ["detector", "notes.txt"]


def test_score_refuses_a_folder_that_is_no_store(refused, calibrated, files):
    assert "index.json" in refused("score", calibrated, files)


def test_score_refuses_to_write_onto_a_folder(refused, calibrated, stores, tmp_path):
    (tmp_path / "scores.csv").mkdir()
    sentence = refused("score", calibrated, stores / "test", "--out", tmp_path / "scores.csv")
    assert "scores.csv is a folder" in sentence


def test_score_replaces_a_file_only_when_forced(apood, refused, calibrated, stores, tmp_path):
    file = tmp_path / "scores.csv"
    file.write_text("mine")
    command = ("score", calibrated, stores / "test", "--out", file)
    assert str(file) in refused(*command) and "--force" in refused(*command)
    assert file.read_text() == "mine"
    apood(*command, "--force")
    assert file.read_text().startswith("index,score,")


def test_evaluate_refuses_a_detector_given_twice(refused, fitted, stores):
    command = ("evaluate", fitted, fitted, "--id", stores / "test", "--ood", f"o={stores / 'other'}")
    assert "twice" in refused(*command)


@pytest.mark.usefixtures("quick_processes")
def test_a_damaged_store_is_refused_unless_asked(apood, refused, stores, fitted, tmp_path):
    store, detector = (shutil.copytree(path, tmp_path / path.name) for path in (stores / "test", fitted))
    shard = next(store.glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1  # the last byte of a text; no number changes
    shard.write_bytes(content)
    for number, command in enumerate(
        (
            ("fit", store, "--method", "knn", "--out", tmp_path / "new"),
            ("calibrate", detector, store),
            ("score", detector, store),
            ("evaluate", detector, "--id", store, "--ood", f"o={stores / 'other'}"),
            ("evaluate", detector, "--id", stores / "other", "--ood", f"o={store}"),
            ("select", store, "--method", "knn", "--grid", "k=1", "--jobs", 1, "--aux", stores / "other"),
        )
    ):
        place = ("--out", tmp_path / f"out{number}") if command[0] == "select" else ()
        assert "checksum" in refused(*command, *place)
        apood(*command, *place, "--no-verify")


def test_inspect_refuses_damaged_things(refused, stores, fitted, tmp_path):
    store = shutil.copytree(stores / "test", tmp_path / "store")
    shard = next(store.glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert "checksum" in refused("inspect", store, "--verify")
    detector = shutil.copytree(fitted, tmp_path / "detector")
    (detector / "model.safetensors").write_bytes(b"")
    assert "sha256" in refused("inspect", detector)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("calibrate {detector} {texts}/held-out.jsonl --accept 2", "accept must be a number"),
        ("fit {texts}/train.jsonl --model {model} --out {new}/d --method binary-logits", "with --aux"),
        (
            "build {texts}/train.jsonl --model {model} --out {new}/d --method binary-logits",
            "outliers: give some with --aux",
        ),
        (
            "fit {texts}/train.jsonl --model {model} --out {new}/d --method binary-logits --engine ray --sample 9",
            "outliers: choose --engine plain, and give some with --aux",
        ),
        ("select {texts}/train.jsonl --model {model} --out {new}/s --method knn", "AUX"),
        ("select {texts}/train.jsonl --model {model} --out {new}/s --method ap-ood --supervised", "AUX"),
        ("select {texts}/train.jsonl --model {model} --out {new}/s --method ap-ood --validation-share 1", "share"),
        (
            "select {texts}/train.jsonl --model {model} --out {new}/s --method knn --aux {texts}/other.jsonl --seeds 2",
            "knn has no seed",
        ),
        (
            "select {texts}/train.jsonl --model {model} --out {new}/s --method ap-ood --grid seed=1,2 --seeds 2",
            "leaves nothing to average",
        ),
        (
            "select {texts}/train.jsonl --model {model} --out {new}/s --method ap-ood --aux-share 0.5",
            "add --supervised",
        ),
        (
            "select {texts}/train.jsonl --model {model} --out {new}/s --method ap-ood --validation {texts}/test.jsonl "
            "--validation-share 0.5",
            "--validation",
        ),
    ],
)
def test_no_text_is_embedded_for_a_command_that_is_refused(
    refused, calibrated, model, files, tmp_path, monkeypatch, command, named
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    new = tmp_path / "new"
    new.mkdir()
    places = {"detector": calibrated, "texts": files, "model": model, "new": new}
    assert named in refused(*command.format(**places).split())
    assert not (tmp_path / "cache" / "apood").exists() and not list(new.glob("**/*.safetensors"))


@pytest.mark.parametrize("wrong", [["--accept", "2"], ["--hold-out", "1"], []])
def test_a_pipe_is_not_read_by_a_build_that_is_refused(refused, calibrated, model, tmp_path, monkeypatch, wrong):
    monkeypatch.setattr("apood.cli.build._read", lambda *_: pytest.fail("the texts were read"))
    assert refused("build", "-", "--model", model, "--out", tmp_path / "new" if wrong else calibrated, *wrong)


def test_a_pipe_is_not_read_by_a_build_whose_place_of_work_is_taken(refused, model, tmp_path, monkeypatch):
    monkeypatch.setattr("apood.cli.build._read", lambda *_: pytest.fail("the texts were read"))
    (tmp_path / "new.building").mkdir()
    (tmp_path / "new.building" / "mine.txt").touch()
    assert "it holds something else" in refused("build", "-", "--model", model, "--out", tmp_path / "new")


def test_scores_of_a_folder_of_texts_say_what_to_give(refused, calibrated, tmp_path):
    neither = f"{str(tmp_path)!r} is neither a token store (it has no index.json) nor a folder of sounds"
    assert refused("score", calibrated, tmp_path) == f"{neither} (no .wav or .flac)."
    (tmp_path / "a.jsonl").touch()
    pattern = str(tmp_path / "**" / "*.jsonl")
    advice = f": give {pattern!r} for the texts in its files"
    assert refused("score", calibrated, tmp_path).endswith(f"{advice}.")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "b.md").touch()
    assert refused("score", calibrated, tmp_path).endswith(f"{advice}, or 'files:{tmp_path}' if each file is one text.")


def test_a_pipe_is_not_read_by_a_calibration_that_is_refused(refused, calibrated, tmp_path, monkeypatch):
    monkeypatch.setattr("apood.cli.recalibrate._read_review", lambda *_: pytest.fail("the rows were read"))
    assert "accept must be a number" in refused(
        "recalibrate", calibrated, "-", "--out", tmp_path / "new", "--accept", 2
    )


def test_a_place_that_is_taken_is_refused_before_a_cluster_looks_at_the_model(refused, stores, files):
    options = ["--model", "none", "--out", stores / "train", "--engine", "ray"]
    assert "already exists" in refused("embed", files / "test.jsonl", *options)


@pytest.mark.parametrize("option", [["--field", "x"], ["--target-field", "y"], ["--keep", "z"]])
def test_options_of_fields_are_refused_for_scores_of_sounds(refused, calibrated, option):
    assert f"{option[0]} is for files with fields: sounds have none" in refused("score", calibrated, "a.wav", *option)


@pytest.mark.parametrize("engine", ["plain", "ray"])
def test_a_target_is_refused_for_scores_of_texts_alone(refused, calibrated, files, tmp_path, engine):
    options = ["--engine", engine, "--target-field", "text", "--out", tmp_path / "rows.jsonl"]
    sentence = refused("score", calibrated, files / "test.jsonl", *options)
    assert "--target-field is for encoders of mode reference, but that of the detector has mode input" in sentence


@pytest.mark.parametrize("option", [["--field", "x"], ["--model", "m"], ["--skip-bad"], ["--target-field", "y"]])
def test_options_of_texts_are_refused_for_scores_of_a_store(refused, calibrated, stores, option):
    assert f"{option[0]} is for texts and sounds" in refused("score", calibrated, stores / "test", *option)
