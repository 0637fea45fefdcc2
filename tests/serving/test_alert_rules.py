"""The alert rules name gauges that the drift alarm has."""

import re
from pathlib import Path

import apood

RULES = Path(apood.__file__).parent / "serving" / "alerts.yml"


def test_the_gauges_in_the_rules_are_those_of_the_alarm():
    named = set(re.findall(r"\bapood_drift_\w+", RULES.read_text(encoding="utf-8")))
    assert named and named <= {f"apood_drift_{name}" for name in apood.DriftAlarm([0.0]).gauges()}
