"""The sets of a corpus: read, rid of duplicates, and split by a hash of each text.

The part that a text belongs to depends on the text and the salt alone, not on its place, on a seed or on other texts.
If a set is larger than its limit, those with the smallest hashes are kept, so that a new text can at most push out
another one.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from apood.data.inputs import holds_sounds, read_records
from apood.data.record import BadRecord, Record, Sound
from apood.data.sounds import read_sounds
from apood.encoders.embed import limit_records
from apood.encoders.text.sentences import find_sentence_places
from apood.experiments.text.declaration import Corpus, Input, Limits
from apood.experiments.text.splices import splice_sets
from apood.support.checks import format_count
from apood.support.errors import InputError

__all__ = [
    "AUX", "OOD", "SPLICED", "TEST", "TRAIN", "VALIDATION", "CorpusSets", "Item", "draw_order", "make_sets",
    "normalize_text",
]  # fmt: skip

TRAIN, VALIDATION, TEST, AUX, OOD, SPLICED = "train", "validation", "test", "aux", "ood.", "spliced."

Item = str | Sound

_TEST_SHARE = 0.2  # of an ID set that comes in one piece
_VALIDATION_SHARE, _LEAST_VALIDATION = 0.1, 30  # of the ID texts that are not for testing; a threshold needs 19
_HOST_SHARE = 0.25  # of the ID texts for testing: they receive a foreign sentence, and are not tested without it
_DONOR_SHARE = 0.2  # of the AUX texts: they give sentences, and nothing learns from them
_MOST_READ = 250_000  # records of a set; a hub data set may have billions
_FEWEST = {TRAIN: 50, VALIDATION: 19, TEST: 20}
_SEVERAL = 40  # training texts of several sentences that are needed to learn how sentences fit together


@dataclass(frozen=True)
class CorpusSets:
    """The sets of a corpus that are embedded.

    Attributes:
        items: the texts or sounds by role: `train`, `validation`, `test`, perhaps `aux`, and `ood.` or `spliced.` with
            a name.
        removed: by the name of an input, how many records were left out: `bad` ones, `repeated` ones, and those that
            are `known` from a set with precedence.
        digests: a sha256 of each set.
    """

    items: Mapping[str, list[Item]]
    removed: Mapping[str, Mapping[str, int]]
    digests: Mapping[str, str]

    @cached_property
    def has_sentences(self) -> bool:
        """Whether enough training texts have several sentences for methods that compare sentences."""
        texts = _list_texts(self.items[TRAIN])
        several = (text for text in texts if len(find_sentence_places(text)) > 1)
        return len(list(islice(several, _SEVERAL))) == _SEVERAL


def normalize_text(text: str) -> str:
    """Return the text as it is compared and embedded: in Unicode form NFC, with white space collapsed.

    Line breaks often give a source away, and say nothing about what a text is about.
    """
    return " ".join(unicodedata.normalize("NFC", text).split())


def make_sets(corpus: Corpus, salt: str, limits: Limits) -> CorpusSets:
    """Read all inputs of a corpus and return its sets.

    A text that occurs twice in a set is kept once. A text of the ID training texts is removed from the ID test texts,
    a text of either from the OOD sets, and a text of any of these from the AUX set.
    """
    hasher = _Hasher(salt)
    removed: dict[str, dict[str, int]] = {}

    def read(name: str, given: Input, known: Iterable[Mapping[bytes, Item]] = ()) -> dict[bytes, Item]:
        found, removed[name] = _read(name, given, hasher, list(known))
        return found

    if "id" in corpus.id:
        every = read("id", corpus.id["id"])
        training, testing = hasher.divide(every, "test", _TEST_SHARE)
    else:
        training = read("id_train", corpus.id["id_train"])
        testing = read("id_test", corpus.id["id_test"], [training])
    share = max(_VALIDATION_SHARE, _LEAST_VALIDATION / max(1, len(training)))
    train, validation = hasher.divide(training, "validation", min(share, 0.5))
    ood = {name: read(f"ood.{name}", given, [training, testing]) for name, given in corpus.ood.items()}
    sounds = any(isinstance(item, Sound) for item in testing.values())
    test, hosts = (testing, {}) if sounds else hasher.divide(testing, "host", _HOST_SHARE)
    sets = {
        TRAIN: hasher.take(train, limits.train),
        VALIDATION: hasher.take(validation, limits.validation),
        TEST: hasher.take(test, limits.evaluated),
        **{f"{OOD}{name}": hasher.take(own, limits.evaluated) for name, own in ood.items()},
    }
    donors = {name: hasher.take(own, limits.evaluated) for name, own in ood.items()}
    if corpus.aux is not None:
        aux, donating = hasher.divide(
            read("aux", corpus.aux, [training, testing, *ood.values()]), "donor", _DONOR_SHARE
        )
        sets[AUX] = hasher.take(aux, limits.aux)
        donors["aux"] = hasher.take(donating, limits.evaluated)
    spliced = splice_sets(
        _list_texts(hasher.take(hosts, limits.spliced)),
        {name: _list_texts(own) for name, own in donors.items() if own},
        salt,
        corpus.max_tokens,
    )
    for name, texts in spliced.items():
        if texts:  # there are none for sounds
            sets[f"{SPLICED}{name}"] = list(texts)
    for role, least in _FEWEST.items():
        if len(sets[role]) < least:
            raise InputError(
                f"The corpus {corpus.name} has {format_count(len(sets[role]), 'text')} for {role}, "
                f"and at least {least} are needed."
            )
    if empty := [role for role, own in sets.items() if not own]:
        raise InputError(f"The corpus {corpus.name} has no text left for {empty[0]}.")
    return CorpusSets(sets, removed, {role: _digest(own) for role, own in sets.items()})


def _list_texts(items: Iterable[Item]) -> list[str]:
    return [item for item in items if isinstance(item, str)]


def draw_order(items: Sequence[Item], salt: str, number: int) -> list[int]:
    """Return the places of the items in the order of draw `number`: the first n are a random draw of n."""
    hasher = _Hasher(salt)
    return sorted(range(len(items)), key=lambda place: hasher.hash(_encode(items[place]), f"draw {number}"))


class _Hasher:
    """Places texts by their hashes."""

    def __init__(self, salt: str) -> None:
        self.salt = salt

    def hash(self, content: bytes, purpose: str) -> bytes:
        """Return a sha256 that depends on the salt and on what it is for."""
        return hashlib.sha256(f"{self.salt}\0{purpose}\0".encode() + content).digest()

    def divide(
        self, items: Mapping[bytes, Item], purpose: str, share: float
    ) -> tuple[dict[bytes, Item], dict[bytes, Item]]:
        """Return the items whose hashes lie above, and those whose hashes lie below the share."""
        limit = int(share * 2**64)
        below = {key for key in items if int.from_bytes(self.hash(key, purpose)[:8]) < limit}
        return (
            {key: item for key, item in items.items() if key not in below},
            {key: item for key, item in items.items() if key in below},
        )

    def take(self, items: Mapping[bytes, Item], count: int) -> list[Item]:
        """Return the items with the smallest hashes, in the order of these."""
        return [items[key] for key in sorted(items, key=lambda key: self.hash(key, "order"))[:count]]


def _read(
    name: str, given: Input, hasher: _Hasher, known: list[Mapping[bytes, Item]]
) -> tuple[dict[bytes, Item], dict[str, int]]:
    """Return the items of an input by what they are compared by, and how many were left out."""
    found: dict[bytes, Item] = {}
    counts = {"bad": 0, "repeated": 0, "known": 0}
    for number, record in enumerate(limit_records(_open(given), _MOST_READ)):
        if not isinstance(record, Record):
            if number == 0:  # all may be bad for the same reason
                raise InputError(record.reason)
            counts["bad"] += 1
            continue
        item = record.item if isinstance(record.item, Sound) else normalize_text(record.item)
        key = hasher.hash(_encode(item), "identity")
        if key in found:
            counts["repeated"] += 1
        elif any(key in other for other in known):
            counts["known"] += 1
        else:
            found[key] = item
    if not found:
        raise InputError(f"{name} has no texts of its own: {', '.join(f'{n} {what}' for what, n in counts.items())}.")
    return found, counts


def _open(given: Input) -> Iterable[Record | BadRecord]:
    if any(map(holds_sounds, given.names)):
        return read_sounds(given.names)
    return read_records(given.names, field=given.field)


def _encode(item: Item) -> bytes:
    if isinstance(item, str):
        return item.encode("utf-8", "surrogatepass")
    return f"{item.rate}\0".encode() + item.samples.tobytes()


def _digest(items: Iterable[Item]) -> str:
    digest = hashlib.sha256()
    for item in items:
        digest.update(hashlib.sha256(_encode(item)).digest())
    return digest.hexdigest()
