"""The example in the docstring of `TextDetector` runs."""

import doctest

import apood


def test_the_example_runs(models, texts):
    names = {"folder": models("bert"), "texts": texts}
    (found,) = doctest.DocTestFinder(recurse=False).find(apood.TextDetector, "TextDetector", globs=names)
    assert found.examples and doctest.DocTestRunner().run(found).failed == 0
