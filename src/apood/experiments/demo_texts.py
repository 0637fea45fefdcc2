"""The texts of the demo: Python's own documentation is in-distribution, all other texts are not.

ID texts are the docstrings of the standard library and the topics of `help()`. They are split by module, so that
similar sentences of one module are never in two sets. All sets are cleaned in the same way, free of near-duplicates,
and as long as the ID test texts, so that neither layout nor length separates them.
"""

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice, repeat

from apood.experiments.demo_sources import (
    Module,
    read_dialogues,
    read_language_topics,
    read_licences,
    read_package_modules,
    read_standard_library,
    split_prose,
)
from apood.support.errors import ApoodError

__all__ = ["DemoTexts", "Spliced", "count_units", "make_demo_texts"]

Document = list[str]
"""Consecutive sentences of prose, or words of code."""

_SHORTEST, _LONGEST = 18, 64  # in units; the longest fit into 96 word pieces
_MOST_OF_A_MODULE = 60  # texts, so that no test set is about one module
_PACKAGES = ("numpy", "scipy", "sklearn", "torch")
_MODULES_OF_A_PACKAGE = 50  # enough to choose from, and quick to parse
_INJECTED = range(6, 25)  # lengths of an injected sentence, in units
_UNIT = re.compile(r"[^\W_]+|_|[^\w\s]")


@dataclass(frozen=True)
class Spliced:
    """An ID text with one foreign sentence, `text[start:end]`."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class DemoTexts:
    """All sets of the demo; `ood` also holds the texts of `spliced`, with the same names and in the same order."""

    train: list[str]
    calibration: list[str]
    test: list[str]
    ood: dict[str, list[str]]
    spliced: dict[str, list[Spliced]]


def count_units(text: str) -> int:
    """Return the number of words and punctuation marks, which is close to the number of word pieces."""
    return len(_UNIT.findall(text))


def make_demo_texts(seed: int = 0, quick: bool = False) -> DemoTexts:
    """Return the texts, which are the same for the same seed on the same installation."""
    generator = random.Random(seed)
    train_size, test_size = (600, 200) if quick else (2800, 400)
    library = read_standard_library()
    seen: set[str] = set()
    modules = [_make_texts(module, seen, generator) for module in [*read_language_topics(), *library]]
    generator.shuffle(modules)
    remaining = iter(modules)
    test = _take(remaining, test_size, generator)
    calibration = _take(remaining, test_size, generator)
    train = _take(remaining, train_size, generator)

    functions = [function for module in library for function in module.functions]
    packages = chain.from_iterable(islice(read_package_modules(p, generator), _MODULES_OF_A_PACKAGE) for p in _PACKAGES)
    foreign = {
        "package docs": _drop_duplicates((split_prose(text) for module in packages for text in module.documents), seen),
        "licences": _drop_duplicates((split_prose(text) for text in read_licences()), seen),
        "dialogue": _drop_duplicates(([_end_sentence(line) for line in topic] for topic in read_dialogues()), seen),
        "source code": [_split_code(function) for function in generator.sample(functions, len(functions) // 8)],
    }
    lengths = [count_units(" ".join(text)) for text in test]
    spliced = {
        "spliced dialogue": _splice(test, foreign["dialogue"], lengths, generator),
        "spliced licence": _splice(test, foreign["licences"], lengths, generator),
    }
    ood = {name: _match_lengths(documents, lengths, generator) for name, documents in foreign.items()}
    ood["shuffled words"] = [_shuffle_words(" ".join(text), generator) for text in test]
    ood |= {name: [each.text for each in texts] for name, texts in spliced.items()}
    return DemoTexts(_join(train), _join(calibration), _join(test), ood, spliced)


def _join(texts: Iterable[Document]) -> list[str]:
    return [" ".join(text) for text in texts]


def _make_texts(module: Module, seen: set[str], generator: random.Random) -> list[Document]:
    documents = _drop_duplicates((split_prose(text) for text in module.documents), seen)
    texts = [text for document in documents for text in _pack(document, repeat(_LONGEST))]
    return generator.sample(texts, min(len(texts), _MOST_OF_A_MODULE))


def _take(modules: Iterator[list[Document]], size: int, generator: random.Random) -> list[Document]:
    """Return about `size` texts of whole modules, so that no module is in two sets."""
    texts: list[Document] = []
    while len(texts) < size and (module := next(modules, None)) is not None:
        texts += module
    if len(texts) < 0.8 * size:
        raise ApoodError(
            f"The demo reads the sources of Python's standard library, which gave only {len(texts)} of {size} texts; "
            "use a Python that is installed with its .py files."
        )
    return generator.sample(texts, min(len(texts), size))


def _drop_duplicates(documents: Iterable[Document], seen: set[str]) -> list[Document]:
    """Return the documents without sentences that mostly repeat earlier ones; add their word 4-grams to `seen`."""
    kept = []
    for document in documents:
        fresh = []
        for sentence in document:
            words = re.findall(r"[a-z]+", sentence.lower())
            grams = {" ".join(words[i : i + 4]) for i in range(max(1, len(words) - 3))}
            if 2 * len(grams & seen) < len(grams):
                fresh.append(sentence)
            seen |= grams
        kept.append(fresh)
    return kept


def _pack(document: Document, targets: Iterator[int]) -> list[Document]:
    """Cut a document between sentences into texts with lengths near the targets and within the limits."""
    texts: list[Document] = [[]]
    size, target = 0, next(targets)
    for sentence in document:
        grown = size + count_units(sentence)
        if grown > _LONGEST or grown - target > target - size:
            texts.append([])
            grown, target = grown - size, next(targets)
        texts[-1].append(sentence)
        size = grown
    return [text for text in texts if _SHORTEST <= count_units(" ".join(text)) <= _LONGEST]


def _match_lengths(documents: list[Document], lengths: Sequence[int], generator: random.Random) -> list[str]:
    """Return a text from the documents for each of the `lengths`, of nearly that length, as long as there are any."""
    targets = iter(lambda: generator.choice(lengths), None)
    texts = {" ".join(text): None for document in documents for text in _pack(document, targets)}
    pool: defaultdict[int, list[str]] = defaultdict(list)
    for text in generator.sample(list(texts), len(texts)):
        pool[count_units(text)].append(text)
    chosen = []
    for wanted in lengths:
        near = next((pool[wanted + off] for off in (0, -1, 1, -2, 2, -3, 3) if pool.get(wanted + off)), None)
        if near:
            chosen.append(near.pop())
    return chosen


def _splice(
    hosts: list[Document], foreign: list[Document], lengths: Sequence[int], generator: random.Random
) -> list[Spliced]:
    """Return an ID text with one foreign sentence for each of the `lengths`, of exactly that length.

    Last sentences of the host make room, but never part of one: a text that breaks off would be anomalous for another
    reason.
    """
    hosts_by_length: defaultdict[int, list[Document]] = defaultdict(list)
    for host in hosts:
        for count, size in enumerate(accumulate(map(count_units, host)), start=1):
            hosts_by_length[size].append(host[:count])
    foreign_by_length: defaultdict[int, list[str]] = defaultdict(list)
    for sentence in chain.from_iterable(foreign):
        foreign_by_length[count_units(sentence)].append(sentence)
    spliced = []
    for wanted in lengths:
        fitting = [
            size
            for size in _INJECTED
            if 2 * size <= wanted and foreign_by_length.get(size) and hosts_by_length.get(wanted - size)
        ]
        if fitting:
            size = generator.choice(fitting)
            host = generator.choice(hosts_by_length[wanted - size])
            spliced.append(_inject(host, generator.choice(foreign_by_length[size]), generator))
    return spliced


def _inject(host: Document, sentence: str, generator: random.Random) -> Spliced:
    place = generator.randint(0, len(host))
    start = sum(len(before) + 1 for before in host[:place])
    return Spliced(" ".join([*host[:place], sentence, *host[place:]]), start, start + len(sentence))


def _shuffle_words(text: str, generator: random.Random) -> str:
    words = text.split()
    return " ".join(generator.sample(words, len(words)))


def _end_sentence(line: str) -> str:
    """Return a line of dialogue with a full stop, since a missing one would give it away."""
    return line if line.endswith((".", "!", "?")) else line.rstrip(",;:- ") + "."


def _split_code(function: str) -> Document:
    without_comments = re.sub(r"(^|\s)#.*", "", function)
    return without_comments.split()
