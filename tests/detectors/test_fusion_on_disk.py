"""A fusion on disk: an interrupted fit continues, and a saved fusion consists of saved detectors."""

import json
import shutil

import numpy as np
import pytest
from builders import correlated_sequences
from test_artefact import edit

import apood
from apood.detectors.ap_ood import detector as ap_ood
from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.fusion import Fusion
from apood.detectors.knn import KNN
from apood.detectors.mahalanobis import Mahalanobis
from apood.fitting.optimise import Checkpoint
from apood.support.errors import ArtefactError

DIM = 8
ARGUMENTS = {"steps": 30, "heads": 3, "batch_size": 16}


@pytest.fixture(scope="module")
def fitted(new_detector, train):
    """A fitted fusion, in place of the fixture for all methods."""
    return new_detector("fusion").fit(train)


@pytest.fixture
def saved(fitted, tmp_path):
    fitted.save(tmp_path / "detector")
    return tmp_path / "detector"


# Interruptions.


def interrupted_fit(monkeypatch, members, data, checkpoint, *, seed, step):
    """Fit until the training of the member with this seed reaches `step`."""

    class Interrupted(ap_ood.Training):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.own_seed = arguments[-1]

        def __call__(self, number):
            if (self.own_seed, number) == (seed, step):
                raise KeyboardInterrupt
            return super().__call__(number)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ap_ood, "Training", Interrupted)
        Fusion(members).fit(data[0], aux=data[1], checkpoint=checkpoint)


def test_an_interrupted_fit_goes_on(tmp_path, monkeypatch, train, test_set):
    data = train[:60], correlated_sequences(5, DIM, seed=1, shift=4.0)
    members = [APOOD(seed=1, **ARGUMENTS), KNN(), APOOD(seed=2, **ARGUMENTS)]
    checkpoint = Checkpoint(tmp_path / "fit.checkpoint", every_seconds=0)
    interrupted_fit(monkeypatch, members, data, checkpoint, seed=1, step=10)
    assert [path.name for path in tmp_path.iterdir()] == ["fit.checkpoint.part-0"]
    interrupted_fit(monkeypatch, members, data, checkpoint, seed=2, step=10)
    kept = {"fit.checkpoint.part-0", "fit.checkpoint.part-2"}
    assert {path.name for path in tmp_path.iterdir()} == kept and checkpoint.exists()

    steps = []
    original = ap_ood.Training.__call__
    monkeypatch.setattr(ap_ood.Training, "__call__", lambda *call: steps.append(call[1]) or original(*call))
    found = Fusion(members).fit(data[0], aux=data[1], checkpoint=checkpoint)
    assert steps == [29, *range(10, 30)], "nothing is done twice"
    expected = Fusion(members).fit(data[0], aux=data[1])
    assert np.array_equal(found.score_samples(test_set), expected.score_samples(test_set))

    with pytest.raises(ArtefactError, match="part-0 belongs to"):
        Fusion(members, seed=1).fit(data[0], aux=data[1], checkpoint=checkpoint)
    (tmp_path / "fit.checkpoint.part-time.txt").write_text("precious")
    checkpoint.delete()
    assert [path.name for path in tmp_path.iterdir()] == ["fit.checkpoint.part-time.txt"] and not checkpoint.exists()
    checkpoint.delete()
    Checkpoint(tmp_path / "nowhere" / "checkpoint").delete()


# Saved fusions.


def test_a_saved_fusion_is_made_of_saved_detectors(fitted, saved, train, test_set):
    files = sorted(str(path.relative_to(saved)) for path in saved.rglob("*") if path.is_file())
    own = ["config.json", "model.safetensors"]
    assert files == own[:1] + [f"members/{number}/{file}" for number in range(3) for file in own] + own[1:]
    knn = apood.load(saved / "members" / "1")
    assert np.array_equal(knn.score_samples(test_set), fitted.members_[1].score_samples(test_set))
    loaded = apood.load(saved)
    assert str(loaded) == str(fitted) and [str(m) for m in loaded.members] == [str(m) for m in fitted.members]
    assert not hasattr(loaded.members[1], "bank_"), "the members given are not the fitted ones"
    assert np.array_equal(loaded.fit(train).score_samples(test_set), fitted.score_samples(test_set))


def test_parameters_of_members_survive(train, tmp_path):
    inner = Fusion([Mahalanobis(eigenvalue_floor=np.float32(0.5))], seed=5)
    Fusion([KNN(k=np.int64(3)), inner]).fit(train).save(tmp_path / "detector")
    config = json.loads((tmp_path / "detector" / "config.json").read_text())
    assert config["parameters"]["members"][0] == {"method": "knn", "parameters": KNN(k=3).get_params()}
    knn, again = apood.load(tmp_path / "detector").members
    assert knn.get_params() == KNN(k=3).get_params()
    assert again.seed == 5 and again.members[0].get_params() == {"normalize": "none", "eigenvalue_floor": 0.5}


def test_a_member_that_was_exchanged_is_refused(saved, train):
    shutil.rmtree(saved / "members" / "1")
    KNN().fit(train[:70]).save(saved / "members" / "1")  # sound in itself
    with pytest.raises(ArtefactError, match=r"members/1 .*config_sha256 differs"):
        apood.load(saved)
    with pytest.raises(ArtefactError, match="not a saved detector"):
        KNN().fit(train).save(saved)


def test_a_member_that_was_changed_or_lost_is_refused(saved):
    tensors = saved / "members" / "2" / "model.safetensors"
    content = tensors.read_bytes()
    tensors.write_bytes(content[:-1])
    with pytest.raises(ArtefactError, match=r"members/2/model\.safetensors is not the file that was saved"):
        apood.load(saved)
    tensors.unlink()
    with pytest.raises(ArtefactError, match=r"members/2 is incomplete: model\.safetensors is missing"):
        apood.load(saved)
    shutil.rmtree(saved / "members")
    with pytest.raises(ArtefactError, match=r"There is no detector .*members/0.: nothing is at that path"):
        apood.load(saved)


def test_a_saved_fusion_may_be_replaced_but_nothing_beside_it(fitted, saved, train, tmp_path):
    fitted.save(saved)
    KNN().fit(train).save(tmp_path / "knn")
    for place, foreign in ((saved, "members/1/notes.txt"), (saved, "members/9"), (tmp_path / "knn", "members/0/x")):
        path = place / foreign
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
        with pytest.raises(ArtefactError, match="not just a saved detector"):
            fitted.save(place)
        assert path.read_text() == "precious"
        path.unlink()
    Mahalanobis().fit(train).save(saved)
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]


def test_only_a_fusion_has_members(saved, train, tmp_path):
    edit(saved, lambda config: config.update(members=3))
    with pytest.raises(ArtefactError, match="no proper 'members'"):
        apood.load(saved)
    edit(saved, lambda config: config.pop("members"))
    with pytest.raises(ArtefactError, match="is incomplete: it does not hold members_"):
        apood.load(saved)
    KNN().fit(train).save(tmp_path / "knn")
    shutil.copytree(saved / "members" / "0", tmp_path / "knn" / "members" / "0")
    digest = json.loads((saved / "members" / "0" / "config.json").read_text())["config_sha256"]
    edit(tmp_path / "knn", lambda config: config.update(members=[digest]))
    with pytest.raises(ArtefactError, match="holds 'members_', which knn does not learn"):
        apood.load(tmp_path / "knn")


def test_a_described_member_that_does_not_exist_is_refused(saved):
    for wrong, sentence in (
        ([{"method": "magic", "parameters": {}}], "There is no method 'magic'"),
        ([{"method": "knn", "parameters": {"k": 0}}], "k must be at least 1"),
        ([{"method": "knn", "parameters": {"magic": 0}}], "argument"),
        (["knn"], "members must be None or a list"),
    ):
        edit(saved, lambda config, wrong=wrong: config["parameters"].update(members=wrong))
        with pytest.raises(ArtefactError, match=sentence):
            apood.load(saved)
