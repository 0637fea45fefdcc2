"""The examples in the docstrings of all public detectors, run by doctest."""

import doctest

import pytest

import apood
from apood.detectors.contract.base import Detector

EXAMPLES = {"default_detector", "load"} | {
    name
    for name in apood.__all__
    if isinstance(found := getattr(apood, name), type) and issubclass(found, Detector) and found is not Detector
}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_example_runs(name):
    (found,) = doctest.DocTestFinder(recurse=False).find(getattr(apood, name), name)
    assert found.examples, "there is no example"
    report = []
    doctest.DocTestRunner(verbose=False).run(found, out=report.append)
    assert not report, "".join(report)
