"""`apood fit`: an interrupted fit continues, and gives the detector of an uninterrupted one."""

import json
import random
import signal
import time

import pytest
import torch
from builders import correlated_sequences, side_channels
from processes import Program, run_program
from safetensors import safe_open

from apood.detectors.contract.artefact import load_detector
from apood.tokens.writer import TokenStoreWriter


def read_learnt(folder):
    return {name: value for name, value in vars(load_detector(folder)).items() if name.endswith("_")}


def assert_same_detector(first, second):
    a, b = read_learnt(first), read_learnt(second)
    assert a.keys() == b.keys()
    for name, value in a.items():
        same = torch.equal(value, b[name]) if isinstance(value, torch.Tensor) else value == b[name]
        assert same, name


@pytest.mark.usefixtures("one_thread")
def test_aux_and_settings_reach_the_method(apood, stores, tmp_path):
    from apood.detectors.ap_ood.detector import APOOD
    from apood.tokens.store import TokenStore

    out = tmp_path / "detector"
    settings = ("--method", "ap-ood", "--set", "steps=20", "--set", "queries=1", "--set", "seed=3")
    result = apood("fit", stores / "train", "--aux", stores / "other", "--out", out, *settings)
    assert "Fitted ap-ood on 120 sequences" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["detector"]
    direct = APOOD(steps=20, queries=1, seed=3).fit(TokenStore(stores / "train"), aux=TokenStore(stores / "other"))
    direct.save(tmp_path / "direct")
    assert_same_detector(out, tmp_path / "direct")
    apood("fit", stores / "train", "--out", tmp_path / "without", *settings)
    assert not torch.equal(load_detector(tmp_path / "without").queries_, direct.queries_)


def test_a_first_look_trains_nothing(apood, refused, stores, tmp_path):
    apood("fit", stores / "train", "--out", tmp_path / "fast", "--fast")
    members = load_detector(tmp_path / "fast").members_
    assert [member.name for member in members] == ["mahalanobis-knn", "knn"]
    assert all(member.count_operations(None) == 0 for member in members)
    assert "leave it out" in refused("fit", stores / "train", "--out", tmp_path / "no", "--fast", "--method", "knn")


def test_outliers_need_no_sentences(apood, refused, tmp_path):
    sentences = {"sentences": side_channels(120)["sentences"]}
    plain = correlated_sequences(60, seed=1, shift=3.0)
    for name, batch in (("train", correlated_sequences(120).with_channels(**sentences)), ("aux", plain)):
        with TokenStoreWriter(tmp_path / name, dim=batch.dim) as writer:
            writer.append(batch)
    options = ("--fast", "--set", "sentences=true", "--out")
    apood("fit", tmp_path / "train", "--aux", tmp_path / "aux", *options, tmp_path / "detector")
    assert load_detector(tmp_path / "detector").members_[-1].name == "coherence"
    sentence = refused("fit", tmp_path / "aux", "--aux", tmp_path / "train", *options, tmp_path / "other")
    assert f"needs sentences, which the token store {tmp_path / 'aux'} lacks" in sentence


OWN = """
from apood import Length

class Own(Length):
    name = "own"
"""


def test_a_method_of_ones_own(stores, tmp_path):
    """In processes of their own, which do not know it yet."""
    (tmp_path / "own_length.py").write_text(OWN)

    def run(*words):
        return run_program(*words, cwd=tmp_path)

    named = ("--method", "own_length:Own")
    assert run("fit", stores / "train", *named, "--out", "detector").code == 0
    refused, shown = run("inspect", "detector"), run("--import", "own_length:Own", "inspect", "detector", "--json")
    assert refused.code == 2 and "`apood --import own_length:Own inspect detector`" in refused.stderr
    assert json.loads(shown.stdout)["method"] == "own"
    assert "cannot be imported" in run("--import", "nowhere:Own", "inspect", "detector").stderr
    data = ("--id-train", stores / "train", "--id-test", stores / "test", "--ood", f"other={stores / 'other'}")
    compared = run("compare", *data, *named, "--method", "knn", "--splits", 1, "--jobs", 2, "--json")
    assert [one["name"] for one in json.loads(compared.stdout)["methods"]] == ["own", "knn"]


def count_steps(checkpoint):
    if not checkpoint.exists():
        return 0
    with safe_open(checkpoint, "pt") as file:
        return int(file.metadata()["step"])


def end_fit(command, checkpoint, how, step):
    """Start a fit with one thread, end it when its checkpoint has reached `step`; return its exit code and messages."""
    with Program(*command, OMP_NUM_THREADS="1") as program:
        while program.is_running() and count_steps(checkpoint) < step:
            time.sleep(0.01)
        program.signal(how)
        ending = program.end()
    return ending.code, ending.stderr


@pytest.fixture
def one_thread():
    """Use one thread, because the sums of a fit depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_an_interrupted_fit_gives_the_detector_of_an_uninterrupted_one(apood, refused, stores, tmp_path):
    given = ["fit", stores / "train", "--aux", stores / "other", "--method", "ap-ood"]
    apood(*given, "--set", "steps=150", "--out", tmp_path / "whole")

    out, checkpoint = tmp_path / "cut", tmp_path / "cut.checkpoint"
    command = [*given, "--set", "steps=150", "--out", out, "--checkpoint-seconds", "0.05"]
    moments = random.Random(0)  # a process ends some time after its step, so at any point of a step
    for how, earliest in ((signal.SIGKILL, 1), (signal.SIGINT, 60)):
        code, messages = end_fit(command, checkpoint, how, earliest + moments.randrange(40))
        assert code == {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130}[how]
    assert messages == f"Interrupted: run the same command again to continue from {checkpoint}.\n"

    sentence = refused(*given, "--out", out, "--set", "steps=30")
    assert str(checkpoint) in sentence and "other settings" in sentence

    apood(*command)
    assert_same_detector(out, tmp_path / "whole")
    assert not checkpoint.exists()


@pytest.mark.usefixtures("one_thread")
def test_the_default_is_the_recommended_fusion(apood, stores, tmp_path):
    out, checkpoint = tmp_path / "out", tmp_path / "out.checkpoint"
    command = ["fit", stores / "train", "--out", out, "--set", "seed=1", "--checkpoint-seconds", "0.05"]
    code, messages = end_fit(command, tmp_path / "out.checkpoint.part-0", signal.SIGINT, 30)
    assert (
        code == 130 and messages == f"Interrupted: run the same command again to continue from {checkpoint}.part-0.\n"
    )
    result = apood(*command)
    assert result.stdout == f"Fitted fusion on 120 sequences of {stores / 'train'} and saved it to {out}.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "no checkpoint is left"

    facts = json.loads(apood("inspect", out, "--json").stdout)
    parameters = {"members": None, "seed": 1, "device": "auto", "beginnings": False, "sentences": False}
    assert facts["method"] == "fusion" and facts["parameters"] == parameters
    members = facts["learnt"]["members_"]
    assert [member.partition("(")[0] for member in members] == ["APOOD", "MahalanobisKNN", "KNN", "KNN"]
    assert "view='summary'" in members[3]
    shown = " ".join(apood("inspect", out).stdout.split())
    assert "seed=1" in members[0] and "MahalanobisKNN" in shown
    trained = load_detector(out).members_[0]
    heads, queries, _ = trained.queries_.shape
    given = {"method": "ap-ood", "heads": heads, "queries": queries, "beta": trained.beta_, "steps": 300}
    assert facts["trained"] == [given]
    assert f"ap-ood: {heads} heads, {queries} queries per head, β {trained.beta_:.4g}, 300 steps" in shown


def test_the_members_of_a_fusion_cannot_be_set(refused, stores, tmp_path):
    sentence = refused("fit", stores / "train", "--out", tmp_path / "out", "--set", "members=knn")
    assert "members can be set in Python only" in sentence


@pytest.mark.usefixtures("few_steps", "one_thread")
def test_the_default_reads_the_summary_of_a_store(apood, stores, tmp_path):
    from apood.tokens.store import TokenStore
    from apood.tokens.writer import TokenStoreWriter

    tokens = TokenStore(stores / "train", channels=()).select(slice(None))
    with TokenStoreWriter(tmp_path / "store", dim=tokens.dim, dtype=tokens.dtype) as writer:
        writer.append(tokens)
    for store, channels in ((stores / "train", {"tokens", "summary"}), (tmp_path / "store", {"tokens"})):
        apood("fit", store, "--out", tmp_path / "detector", "--force")
        assert load_detector(tmp_path / "detector").requires == channels
