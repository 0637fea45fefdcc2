"""`apood datasets`: the list, and the details of one set."""

import json

import pytest

from apood.data.presets import PRESETS


def test_the_list(apood):
    shown = " ".join(apood("datasets", env={"COLUMNS": "200"}).stdout.split())
    for preset in PRESETS.values():
        assert f"{preset.usage} {preset.role} {preset.about}" in shown
        assert f"field {preset.field}" + (f", needs {preset.needs}" if preset.get else "") in shown
    assert "EdinburghNLP/xsum (train, validation, test), field document" in shown
    assert "apood datasets NAME" in shown


def test_the_list_fits_into_a_narrow_terminal(apood):
    lines = apood("datasets", env={"COLUMNS": "80"}).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(any(line.startswith(preset.usage + " ") for line in lines) for preset in PRESETS.values())


def test_the_list_as_json(apood):
    listed = json.loads(apood("datasets", "--json").stdout)
    assert [one["name"] for one in listed] == list(PRESETS)
    assert all(one["role"] and one["field"] and one["needs"] and one["stands_for"] for one in listed)
    assert listed[0]["stands_for"] == "hf:EdinburghNLP/xsum:train@refs/convert/parquet"


@pytest.mark.parametrize("name", ["newsroom", "newsroom:FILE"])
def test_one_of_them(apood, name):
    shown = " ".join(apood("datasets", name).stdout.split())
    assert "input newsroom:FILE" in shown and "role OOD" in shown and "target summary" in shown
    assert "needs a request to Cornell" in shown and "lil.nlp.cornell.edu" in shown
    assert "not verified" not in shown


def test_one_of_them_as_json(apood):
    one = json.loads(apood("datasets", "edgar", "--json").stdout)
    assert one["field"] == "section_1" and one["target"] is None and one["how_to_get_it"] is None
    assert "Which section" in one["not_verified"]


def test_an_unknown_name(refused):
    assert "no data set 'xsun'" in (message := refused("datasets", "xsun"))
    assert "xsum, c4" in message


def test_help_teaches(apood):
    shown = " ".join(apood("datasets", "--help").stdout.split())
    assert "Example: apood datasets xsum" in shown
    assert "NAME:SPLIT" in shown and "NAME:PATH" in shown
