"""A digest of the code changes with every file that a fit follows from, and with no other."""

import shutil
from pathlib import Path

import pytest

import apood
from apood.support import files as module
from apood.support.files import source_digest


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package to change, and its digest."""
    copy = tmp_path / "apood"
    shutil.copytree(Path(apood.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(module, "_PACKAGE", copy)
    return copy


def test_the_same_code_has_the_same_digest_wherever_it_lies(package, tmp_path, monkeypatch):
    before = source_digest.__wrapped__()
    monkeypatch.setattr(module, "_PACKAGE", package.rename(tmp_path / "elsewhere"))
    assert source_digest.__wrapped__() == before


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("detectors/ap_ood/recipe.py", True),
        ("fitting/optimise.py", True),
        ("pooling/algebra.py", True),
        ("tokens/loader.py", True),
        ("detectors/new.py", True),
        ("report/tables.py", False),
    ],
)
def test_what_a_fit_follows_from_counts(package, file, counts):
    before = source_digest.__wrapped__()
    with (package / file).open("a", encoding="utf-8") as code:
        code.write("# changed")
    assert (source_digest.__wrapped__() != before) == counts


def test_a_renamed_file_counts(package):
    before = source_digest.__wrapped__()
    (package / "fitting/optimise.py").rename(package / "fitting/other.py")
    assert source_digest.__wrapped__() != before
