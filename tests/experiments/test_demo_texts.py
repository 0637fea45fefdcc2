import functools
import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest

from apood.evaluation.metrics import auroc
from apood.experiments import demo_sources
from apood.experiments.demo_sources import find_package, read_language_topics, read_standard_library, split_prose
from apood.experiments.demo_texts import _splice, count_units, make_demo_texts
from apood.support.errors import ApoodError

SETS = {"package docs", "licences", "dialogue", "source code", "shuffled words", "spliced dialogue", "spliced licence"}


@pytest.fixture(scope="module", autouse=True)
def each_file_is_parsed_once():
    """Parse hundreds of files once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_sources, "_parse", functools.cache(demo_sources._parse))
        yield


@pytest.fixture(scope="module")
def texts():
    return make_demo_texts(seed=0)


@pytest.fixture(scope="module")
def module_of():
    """The first module with each sentence; the demo drops the sentence from all others."""
    found = {}
    for module in [*read_language_topics(), *read_standard_library()]:
        for document in module.documents:
            for sentence in split_prose(document):
                found.setdefault(sentence, module.name)
    return found


def first_module(text, module_of):
    """Return the module of the first sentence of a text."""
    ends = (match.end() for match in re.finditer(r"[.!?][\"')]?(?= |$)", text))
    return next(module_of[text[:end]] for end in ends if text[:end] in module_of)


def all_sets(texts):
    return {"train": texts.train, "calibration": texts.calibration, "test": texts.test} | texts.ood


def test_sets_and_their_sizes(texts):
    sizes = {name: len(texts_of) for name, texts_of in all_sets(texts).items()}
    assert set(texts.ood) == SETS
    assert (sizes["train"], sizes["calibration"], sizes["test"]) == (2800, 400, 400)
    assert min(sizes[name] for name in SETS) >= 250
    assert max(sizes[name] for name in SETS) <= 400


def test_no_text_occurs_twice(texts):
    for name, texts_of in all_sets(texts).items():
        if not name.startswith("spliced"):
            assert len(set(texts_of)) == len(texts_of), name
    id_texts = texts.train + texts.calibration + texts.test
    assert len(set(id_texts)) == len(id_texts)


def test_layout_does_not_separate_the_sets(texts):
    for name, texts_of in all_sets(texts).items():
        for text in texts_of:
            assert text == " ".join(text.split()), name
            if name != "source code":
                assert ">>>" not in text
                assert "`" not in text


@pytest.mark.parametrize("name", sorted(SETS))
def test_length_does_not_separate_the_sets(texts, name):
    def separation(measure):
        scores = [np.array([measure(text) for text in texts_of], float) for texts_of in (texts.test, texts.ood[name])]
        return 100 * auroc(*scores).value

    assert 45 < separation(count_units) < 55
    if name.startswith("spliced"):
        assert 45 < separation(lambda text: len(text.split())) < 55


def test_a_spliced_text_is_id_text_around_one_foreign_sentence(texts, module_of):
    test_modules = {first_module(text, module_of) for text in texts.test}
    for name, spliced in texts.spliced.items():
        assert [each.text for each in spliced] == texts.ood[name]
        for each in spliced:
            injected = each.text[each.start : each.end]
            assert injected == injected.strip()
            assert injected not in module_of
            assert 2 * count_units(injected) <= count_units(each.text)
            assert first_module(each.text[: each.start] or each.text[each.end :].strip(), module_of) in test_modules


def test_injected_sentences_are_at_the_start_inside_and_at_the_end(texts):
    for spliced in texts.spliced.values():
        places = {"start" if s.start == 0 else "end" if s.end == len(s.text) else "inside" for s in spliced}
        assert places == {"start", "inside", "end"}


def test_impossible_lengths_are_left_out():
    hosts, foreign = [["This is the host's only sentence, and it is long enough."]], [["Six words are what it takes."]]
    possible = count_units(hosts[0][0]) + count_units(foreign[0][0])
    spliced = _splice(hosts, foreign, [possible, possible + 1], random.Random(0))
    assert [count_units(each.text) for each in spliced] == [possible]


def test_modules_are_not_split_between_the_id_sets(texts, module_of):
    train, calibration, test = (
        {first_module(text, module_of) for text in texts_of}
        for texts_of in (texts.train, texts.calibration, texts.test)
    )
    assert min(len(train), len(calibration), len(test)) >= 10
    assert train.isdisjoint(calibration)
    assert train.isdisjoint(test)
    assert calibration.isdisjoint(test)


def test_texts_depend_on_the_seed_alone():
    """Processes of their own have other orders of string sets, and no packages that another test brought along."""
    program = (
        "import hashlib, sys\n"
        "from apood.experiments.demo_texts import make_demo_texts\n"
        "print(hashlib.sha256(repr(make_demo_texts(seed=0)).encode()).hexdigest())\n"
        "print({'scipy', 'sklearn', 'torch', 'chatterbot_corpus'} & set(sys.modules))\n"
    )
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": order},
        ).stdout.split("\n")[:2]
        for order in ("1", "2")
    )
    assert first == second
    assert first[1] == "set()"  # documentation is read, never imported


def test_another_seed_and_quick(texts):
    quick = make_demo_texts(seed=1, quick=True)
    assert (len(quick.train), len(quick.calibration), len(quick.test)) == (600, 200, 200)
    assert not set(quick.test) <= set(texts.test)
    assert max(map(len, quick.ood.values())) <= 200


def test_prose_keeps_sentences_and_drops_the_rest():
    document = """Return the *value* of one :class:`~a.b.Name`, say, of ``x`` [1]_.  It reads `well'.

    >>> value(1)
    A doctest is not a sentence that we want to keep here.

    Parameters
    ----------
    name : what it is called, in a table of parameters.

    def method(self): this is code that ends in a stop.

    - A bullet that stands alone is prose after all.

    - First of many points.
    - Second of many points.

    a_b c_d e_f are(mostly) code_words in_it.

    This one breaks off and has no end, as it introduces an example:
    """
    assert split_prose(document) == [
        "Return the value of one a.b.Name, say, of x.",
        "It reads well.",
        "A bullet that stands alone is prose after all.",
    ]


def test_a_missing_package_names_the_extra():
    with pytest.raises(ApoodError, match=r"no_such_package.*apood\[demo\]"):
        find_package("no_such_package")


def test_a_python_without_sources_is_refused(tmp_path, monkeypatch):
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data" / "topics.py").write_text("topics = {'one': 'Nothing here.'}")
    monkeypatch.setattr(demo_sources.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(ApoodError, match="gave only 0 of 400 texts"):
        make_demo_texts()
    (tmp_path / "pydoc_data" / "topics.py").unlink()
    with pytest.raises(ApoodError, match="help topics, but this Python has no"):
        make_demo_texts()
