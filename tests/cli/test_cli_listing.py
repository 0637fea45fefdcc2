"""Commands that list methods, and the help of all commands."""

import json

import pytest

from apood.detectors.contract.registry import METHODS, detector_class


def test_methods_as_json(apood):
    listed = {method["name"]: method for method in json.loads(apood("methods", "--json").stdout)}
    assert list(listed) == list(METHODS)
    for name, method in listed.items():
        known = detector_class(name)
        assert method["parameters"] == known().get_params()
        assert method["requires"] == sorted(known().requires) and method["aux"] == known().aux
        assert method["summary"] and known.__doc__.startswith(method["summary"])
    assert [name for name, method in listed.items() if method["default"]] == ["fusion"]
    expected = {"k": 5, "normalize": "pooled", "average": False, "view": "tokens"}
    assert listed["ap-ood"]["aux"] == "optional" and listed["knn"]["parameters"] == expected


def test_methods_for_people(apood):
    shown = apood("methods").stdout
    assert all(name in shown for name in METHODS)
    assert "Reads tokens; can learn from AUX." in shown and "k=5" in shown and "No parameters." in shown
    assert "This is the default of `apood fit`." in " ".join(shown.split())


COMMANDS = [
    "audit",
    "demo",
    "embed",
    "fit",
    "calibrate",
    "score",
    "evaluate",
    "compare",
    "select",
    "methods",
    "inspect",
    "bench",
]


def test_help_lists_the_commands(apood):
    assert [c for c in COMMANDS if f" {c} " not in apood("--help").stdout] == []
    assert apood().stdout == apood("--help").stdout


@pytest.mark.parametrize("command", [[c] for c in COMMANDS if c != "bench"] + [["bench", "toy"]])
def test_help_of_a_command_has_an_example(apood, command):
    assert f"Example: apood {' '.join(command)}" in apood(*command, "--help").stdout
