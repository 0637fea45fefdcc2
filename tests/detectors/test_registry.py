"""Methods of other distributions, which apood finds by their entry points."""

import sys

import pytest
import torch

import apood
from apood.detectors.contract.registry import METHODS, detector_class, list_methods
from apood.support.errors import InputError

MODULE = """
from apood import Length

class Counter(Length):
    "s(Z) = -|log S - mean log S|, under another name."
    name = "counter"

class Unnamed(Length):
    "Its name is that of its base."

number = 3
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a distribution with entry points into a folder on sys.path."""
    (tmp_path / "counting.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)

    def install(name="counting", **points):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"{point.replace('_', '-')} = {value}" for point, value in points.items()]
        (folder / "entry_points.txt").write_text("\n".join(["[apood.detectors]", *lines]))

    yield install
    for name in ("counting", "broken"):
        sys.modules.pop(name, None)


def test_without_entry_points_only_the_own_methods_are_listed():
    assert list_methods() == list(METHODS)


def test_a_method_of_another_distribution_is_found_saved_and_loaded(install, tmp_path):
    install(counter="counting:Counter")
    assert list_methods() == [*METHODS, "counter"]
    detector = detector_class("counter")().fit([torch.ones(n, 2) for n in (1, 2, 3)])
    detector.save(tmp_path / "saved")
    assert type(apood.load(tmp_path / "saved")) is detector_class("counter")


def test_an_unknown_name_is_refused_with_the_added_methods(install):
    install(counter="counting:Counter")
    with pytest.raises(InputError, match=r"'count' \(did you mean 'counter'\?\).*knn.*counter, and module:Class"):
        detector_class("count")


def test_entry_points_are_not_looked_up_for_the_own_methods(monkeypatch):
    monkeypatch.setattr("apood.detectors.contract.registry.entry_points", lambda **_: pytest.fail("looked up"))
    for name in [*METHODS, "default"]:
        detector_class(name)


def test_an_own_method_is_not_replaced(install):
    install(knn="counting:Counter")
    assert list_methods() == list(METHODS)
    assert detector_class("knn") is apood.KNN


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("broken", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("counting:Missing", "AttributeError"),
        ("counting:number", "not a subclass of Detector"),
        ("counting:Unnamed", "'length'"),
    ],
)
def test_a_method_that_cannot_be_used_is_named_with_its_distribution(install, value, reason):
    install(odd_one=value)
    with pytest.raises(InputError, match=rf"'odd-one'.*{value} \(counting\).*{reason}"):
        detector_class("odd-one")


def test_two_distributions_with_the_same_method_are_refused(install):
    install("first", counter="counting:Counter")
    install("second", counter="counting:Unnamed")
    with pytest.raises(InputError, match=r"'counter': counting:\w+ \(first\) and counting:\w+ \(second\)"):
        list_methods()
