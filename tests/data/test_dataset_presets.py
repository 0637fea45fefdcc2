"""The data sets of the paper: all are there, each says how to get it, and stands for an input that can be read."""

import gzip
import json
import re
from pathlib import Path

import pytest

from apood.data.hub import HubData
from apood.data.inputs import read_records
from apood.data.presets import PRESETS
from apood.data.record import BadRecord, Pair
from apood.support.errors import InputError

PAPER = {
    "summarization": {"xsum": "ID", "c4": "AUX", "cnn_dailymail": "OOD", "newsroom": "OOD", "reddit_tifu": "OOD",
                      "samsum": "OOD"},
    "translation": {"wmt15": "ID", "paracrawl": "AUX", "newstest2014": "OOD", "newsdiscussdev2015": "OOD",
                    "newsdiscusstest2015": "OOD", "opus-law": "OOD", "opus-koran": "OOD", "opus-medical": "OOD",
                    "opus-it": "OOD", "opus-subtitles": "OOD"},
    "language modelling": {"pile": "ID", "paloma-4chan": "OOD", "paloma-twitter": "OOD", "edgar": "OOD",
                           "long-covid": "OOD", "mimic-iii": "OOD"},
    "audio": {"mimii-dg": "ID and OOD"},
}  # fmt: skip
ON_HUB = [preset for preset in PRESETS.values() if preset.hub_id]
DOWNLOADED = [preset for preset in PRESETS.values() if not preset.hub_id]


def items(*inputs: str, **options: object) -> list[object]:
    records = list(read_records(inputs, **options))  # type: ignore[arg-type]
    assert not [record for record in records if isinstance(record, BadRecord)]
    return [record.item for record in records]  # type: ignore[union-attr]


def refused(source: str, **options: object) -> str:
    with pytest.raises(InputError) as error:
        items(source, **options)
    return str(error.value)


def test_every_data_set_of_the_paper_is_there_with_its_role():
    roles: dict[str, dict[str, str]] = {}
    for name, preset in PRESETS.items():
        assert preset.name == name
        roles.setdefault(preset.experiment, {})[name] = preset.role
    assert roles == PAPER


def test_every_preset_is_complete():
    for preset in PRESETS.values():
        assert preset.about and preset.field and preset.where and preset.needs, preset.name
        assert preset.given.count("{}") == 1
        for text in (preset.get, preset.unsure):
            assert not text or text.endswith("."), preset.name


def test_presets_on_the_hub_have_an_id():
    for preset in ON_HUB:
        split = preset.where.split(", ")[-1]
        found = HubData.parse(preset.make_input(split).removeprefix("hf:"))
        assert found.split == split and re.fullmatch(r"[\w-]+/[\w-]+", found.path), preset.name
        assert ("login" in preset.needs) == bool(preset.get), preset.name


def test_presets_to_download_say_how():
    for preset in DOWNLOADED:
        assert preset.where in ("FILE", "PREFIX", "FOLDER")
        assert "https://" in preset.get or "sacrebleu" in preset.get, preset.name
        # the instruction shows how to write the input, except for sounds, which no preset can read
        assert f"{preset.name}:" in preset.get or preset.where == "FOLDER", preset.name


def test_a_downloaded_file(tmp_path: Path):
    lines = [{"text": "an article", "summary": "short", "title": "no"}, {"text": "another", "summary": "brief"}]
    path = tmp_path / "test.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    assert items(f"newsroom:{path}") == ["an article", "another"]
    assert items(f"newsroom:{path}", pairs=True)[0] == Pair("an article", "short")
    assert items(f"newsroom:{path}", field="summary") == ["short", "brief"]
    assert items(f"newsroom:{tmp_path}/*.gz") == items(f"newsroom:{path}")


def test_clinical_notes(tmp_path: Path):
    path = tmp_path / "NOTEEVENTS.csv"
    path.write_text('"ROW_ID","TEXT"\n1,"Admission Date:\n\nstable"\n')
    assert items(f"mimic-iii:{path}") == ["Admission Date:\n\nstable"]
    assert "does not say where its targets are" in refused(f"mimic-iii:{path}", pairs=True)


def test_parallel_text(tmp_path: Path):
    (tmp_path / "EMEA.en-fr.en").write_text("yes\n")
    (tmp_path / "EMEA.en-fr.fr").write_text("oui\n")
    assert items(f"opus-law:{tmp_path}/EMEA.en-fr") == ["yes"]
    assert items(f"opus-law:{tmp_path}/EMEA.en-fr", pairs=True) == [Pair("yes", "oui")]


def test_segments(tmp_path: Path):
    (tmp_path / "src.en.sgm").write_text('<doc>\n<seg id="1">Really?</seg>\n</doc>\n')
    assert items(f"newsdiscussdev2015:{tmp_path}/src.en.sgm") == ["Really?"]


def test_sounds_are_no_texts():
    message = refused("mimii-dg:machines")
    assert "sounds, not texts" in message and "example 'machines'" in message


def test_names_without_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert refused("xsum").endswith("the data set of that name is given as 'xsum:train'.")
    assert refused("xsum:").endswith("train, validation, test after the colon, for example 'xsum:train'.")
    hint = "`apood datasets {}` says how to get the set."
    assert refused("newsroom:missing.jsonl") == f"There is no file 'missing.jsonl'; {hint.format('newsroom')}"
    assert refused("opus-law:missing").endswith(hint.format("opus-law"))
    assert refused("unknown:train") == "There is no file 'unknown:train'."


def test_a_path_with_a_colon_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("10:30.txt", "xsum:x.txt"):
        (tmp_path / name).write_text("late\n")
        assert items(f"./{name}") == ["late"]
    assert items("10:30.txt") == ["late"]
