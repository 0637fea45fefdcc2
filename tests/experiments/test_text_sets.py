"""The sets of the text benchmark: declarations, splits by hash, duplicates and splices."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from text_corpora import DECLARATION, make_texts, write_corpora

from apood.data.presets import PRESETS
from apood.experiments.text.declaration import read_declaration
from apood.experiments.text.splices import splice, split_sentences
from apood.experiments.text.texts import draw_order, make_sets, normalize_text
from apood.support.errors import InputError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def declaration(tmp_path: Path) -> Path:
    return write_corpora(tmp_path / "data")


def read_sets(path: Path, name: str = "small", **limits: int):
    declared = read_declaration(path)
    return make_sets(declared.corpora[name], declared.salt, replace(declared.limits, **limits))


def add_texts(path: Path, texts: list[str]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)


# declarations


def test_a_declaration_names_corpora_and_their_files(declaration: Path) -> None:
    found = read_declaration(declaration)
    small, whole = found.corpora["small"], found.corpora["whole"]
    assert found.salt == "test" and found.limits.train == 200 and found.limits.validation == 500
    assert small.id["id_train"].names == (str(declaration.parent / "train.jsonl"),)
    assert (small.status, whole.status) == ("development", "untouched")
    assert small.kinds == {"other": "far", "alike": "near"} and whole.aux is None
    elsewhere = read_declaration(declaration, declaration.parent.parent)
    assert elsewhere.corpora["small"].aux.names == (str(declaration.parent.parent / "aux.jsonl"),)


def test_names_of_the_hub_stay_as_they_are(declaration: Path) -> None:
    names = ["hf:owner/name:test", "xsum:train", "opus-koran:sub/Tanzil", "moses:sub/both:en-fr", "plain.jsonl"]
    text = DECLARATION.replace('"train.jsonl", "test.jsonl"', ", ".join(f'"{name}"' for name in names))
    declaration.write_text(text, encoding="utf-8")
    folder = declaration.parent
    assert read_declaration(declaration).corpora["whole"].id["id"].names == (
        "hf:owner/name:test",
        "xsum:train",
        f"opus-koran:{folder / 'sub/Tanzil'}",
        f"moses:{folder / 'sub/both:en-fr'}",
        str(folder / "plain.jsonl"),
    )


def test_the_declaration_of_the_project_can_be_read() -> None:
    found = read_declaration(ROOT / "benchmarks" / "text" / "corpora.toml")
    assert {name for name, own in found.corpora.items() if own.status == "untouched"} == {"europarl"}
    assert len(found.corpora["xsum"].ood) == 4 and found.corpora["pile"].aux is None


def test_the_corpora_of_the_hub_are_sets_that_apood_knows() -> None:
    """They need a connection and nothing else, so that everybody can measure on them."""
    found = read_declaration(ROOT / "benchmarks" / "text" / "hub.toml")
    assert {"xsum", "wmt15"} <= set(found.corpora)
    for corpus in found.corpora.values():
        inputs = [*corpus.id.values(), *corpus.ood.values(), *([corpus.aux] if corpus.aux else [])]
        for preset, _, split in (name.partition(":") for one in inputs for name in one.names):
            assert PRESETS[preset].hub_id is not None and not PRESETS[preset].get, f"{preset} takes more than a name"
            assert split in PRESETS[preset].where.split(", ")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('salt = "test"', "salt = 3", "salt must be a text, got 3"),
        ('salt = "test"', "[sals]", "There is no key 'sals' .did you mean 'salt'"),
        ("train = 200", "train = 0", "train in .limits. must be at least 1, got 0"),
        ("train = 200", "trian = 1", "There is no key 'trian' .did you mean 'train'"),
        ('"development"', '"tuned"', "status in .corpora.small. must be .*development.*untouched.*, got 'tuned'"),
        ('id_test = "test.jsonl"', "", "either id_train and id_test, or id alone, got id_train"),
        ('kind = "far"', 'kind = "wide"', "kind of .corpora.small.ood. other must be .*near.*far"),
        ('aux = "aux.jsonl"', "aux = 3", "aux in .corpora.small. must be a file"),
        ('aux = "aux.jsonl"', 'prompt = "read this"', "must contain .text. once"),
        ('aux = "aux.jsonl"', "field = 3", "field in .corpora.small. must be a text"),
        ("max_tokens = 24", "max_tokens = 0", "max_tokens in .corpora.small. must be at least 1"),
        ('{input = "other.jsonl", kind = "far"}', '"other.jsonl"', "must be a table with input and kind"),
        ("[corpora.small]", '[corpora."a/b"]', "letters, digits"),
        ('salt = "test"', "salt = ", "is not TOML"),
    ],
)
def test_a_bad_declaration_is_refused(declaration: Path, old: str, new: str, sentence: str) -> None:
    text = DECLARATION.replace(old, new)
    if "a/b" in new:
        text = text.replace("corpora.small.ood", 'corpora."a/b".ood')
    declaration.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=sentence):
        read_declaration(declaration)


def test_a_missing_file_or_folder_is_named(declaration: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml cannot be read"):
        read_declaration(tmp_path / "none.toml")
    with pytest.raises(InputError, match="There is no folder"):
        read_declaration(declaration, tmp_path / "none")
    (declaration.parent / "other.jsonl").unlink()
    with pytest.raises(InputError, match=r"There is no file .*other\.jsonl"):
        read_sets(declaration)


# splits


def test_every_text_is_in_one_part_and_nothing_is_lost(declaration: Path) -> None:
    sets = read_sets(declaration, train=1000).items
    assert {*sets["train"], *sets["validation"]} == {*make_texts("train")}
    assert not {*sets["train"]} & {*sets["validation"]}
    assert 15 <= len(sets["validation"]) <= 40
    assert {*sets["test"]} < {*make_texts("test")} and len(sets["test"]) == 60
    assert {*sets["ood.other"]} == {*make_texts("other")}
    assert {*sets["aux"]} < {*make_texts("aux")}
    whole = read_sets(declaration, "whole", train=1000, evaluated=1000).items
    assert not {*whole["train"], *whole["validation"]} & {*whole["test"]}
    assert "aux" not in whole and "spliced.other" in whole


def test_order_and_further_texts_move_nothing(declaration: Path) -> None:
    before = read_sets(declaration, train=1000, evaluated=1000)
    for name in ("train", "test", "aux", "other"):
        path = declaration.parent / f"{name}.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(reversed(lines)), encoding="utf-8")
    assert read_sets(declaration, train=1000, evaluated=1000).digests == before.digests
    add_texts(declaration.parent / "train.jsonl", make_texts("train", 1000, 50))
    add_texts(declaration.parent / "test.jsonl", make_texts("test", 1000, 50))
    after = read_sets(declaration, train=1000, evaluated=1000)
    for role in ("train", "validation", "test"):
        assert {*before.items[role]} < {*after.items[role]}
    assert [one for one in after.items["train"] if one in {*before.items["train"]}] == before.items["train"]
    assert after.digests["ood.other"] == before.digests["ood.other"]


def test_a_limit_keeps_the_smallest_hashes(declaration: Path) -> None:
    many, few = (read_sets(declaration, train=count).items["train"] for count in (150, 60))
    assert many[:60] == few


def test_sentences_are_compared_if_enough_texts_have_several(declaration: Path) -> None:
    assert read_sets(declaration).has_sentences
    path = declaration.parent / "train.jsonl"
    texts = [text for text in make_texts("train") if len(split_sentences(text)) == 1]
    path.write_text("", encoding="utf-8")
    add_texts(path, [*texts, "One. Two."])
    assert not read_sets(declaration).has_sentences


def test_another_salt_is_another_split(declaration: Path) -> None:
    before = read_sets(declaration)
    declaration.write_text(DECLARATION.replace('"test"\n', '"other"\n', 1), encoding="utf-8")
    assert not {*read_sets(declaration).items["validation"]} <= {*before.items["validation"]}


def test_duplicates_are_removed_and_counted(declaration: Path) -> None:
    train, other = make_texts("train"), make_texts("other")
    add_texts(declaration.parent / "train.jsonl", [train[0]])
    add_texts(declaration.parent / "test.jsonl", [f"  {train[1]}\n", "a text of its own"])
    add_texts(declaration.parent / "other.jsonl", [train[2], make_texts("test")[3]])
    add_texts(declaration.parent / "aux.jsonl", [other[0], train[3]])
    with (declaration.parent / "alike.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"nothing": 1}\n')
    sets = read_sets(declaration, train=1000, evaluated=1000, aux=1000)
    assert sets.removed == {
        "id_train": {"bad": 0, "repeated": 1, "known": 0},
        "id_test": {"bad": 0, "repeated": 0, "known": 1},
        "ood.other": {"bad": 0, "repeated": 0, "known": 2},
        "ood.alike": {"bad": 1, "repeated": 0, "known": 0},
        "aux": {"bad": 0, "repeated": 0, "known": 2},
    }
    assert train[2] not in sets.items["ood.other"] and other[0] not in sets.items["aux"]
    assert sets.items["train"].count(train[0]) <= 1


def test_too_few_texts_are_refused(declaration: Path) -> None:
    with pytest.raises(InputError, match="has 10 texts for train, and at least 50 are needed"):
        read_sets(declaration, train=10)
    (declaration.parent / "other.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in make_texts("train")[:5]), encoding="utf-8"
    )
    with pytest.raises(InputError, match=r"ood\.other has no texts of its own: 0 bad, 0 repeated, 5 known"):
        read_sets(declaration)


def test_white_space_gives_no_text_away() -> None:
    assert normalize_text(" a\n\tb  c ") == "a b c" and normalize_text("e\u0301") == "\u00e9"


def test_draws_of_aux_are_nested_orders() -> None:
    texts = make_texts("aux")
    first, second = (draw_order(texts, "salt", number) for number in range(2))
    assert sorted(first) == sorted(second) == list(range(len(texts))) and first != second
    kept = [place for place in first if place != 5]  # without a text, the others keep their order
    assert [texts[place] for place in kept] == [
        (texts[:5] + texts[6:])[place] for place in draw_order(texts[:5] + texts[6:], "salt", 0)
    ]


# splices


def test_a_splice_is_the_host_with_one_sentence_of_the_donor(declaration: Path) -> None:
    sets = read_sets(declaration, evaluated=1000).items
    hosts = {*make_texts("test")} - {*sets["test"]}
    for name, donors in (("other", sets["ood.other"]), ("alike", sets["ood.alike"]), ("aux", make_texts("aux"))):
        sentences = {sentence for text in donors for sentence in split_sentences(text)}
        assert len(sets[f"spliced.{name}"]) == min(40, len(hosts)) > 10
        for spliced in sets[f"spliced.{name}"]:
            parts = split_sentences(spliced)
            rests = {" ".join(parts[:i] + parts[i + 1 :]) for i, part in enumerate(parts) if part in sentences}
            assert rests & hosts, spliced
    donating = {*make_texts("aux")} - {*sets["aux"]}
    assert all(
        any(part in {s for text in donating for s in split_sentences(text)} for part in split_sentences(spliced))
        for spliced in sets["spliced.aux"]
    ), "nothing that learns from AUX texts has seen the sentence"


def test_places_and_sentences_vary_and_stay() -> None:
    host = "One is here. Two is here. Three is here."
    donors = [f"A{i} b c d e. F{i} g h i j. K{i} l m n o." for i in range(40)]
    spliced = [splice(host, donor, "salt", 64) for donor in donors]
    assert spliced == [splice(host, donor, "salt", 64) for donor in donors]
    sentences = [next(s for s in split_sentences(text) if s not in host) for text in spliced]
    assert {split_sentences(text).index(s) for text, s in zip(spliced, sentences, strict=True)} == {0, 1, 2, 3}
    assert {sentence[0] for sentence in sentences} == {"A", "F", "K"}


def test_the_sentence_is_not_cut_off() -> None:
    host = " ".join(f"Sentence {i} has five words." for i in range(200))
    for number in range(30):
        before = splice(host, f"A foreign sentence is number {number}.", "salt", 64).partition("A foreign")[0]
        assert len(before.split()) <= 32


def test_a_donor_without_an_eligible_sentence_gives_its_first_words() -> None:
    assert splice("Host.", "short one", "salt", 64) in ("Host. short one", "short one Host.")
    long = " ".join(f"w{i}" for i in range(80))
    assert " ".join(f"w{i}" for i in range(50)) in splice("Host.", long, "salt", 64)
    assert "w50" not in splice("Host.", long, "salt", 64)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ('He said "Go." She went.', ['He said "Go."', "She went."]),
        ("Version 1.2 is out", ["Version 1.2 is out"]),
    ],
)
def test_sentences_end_where_they_end(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences
