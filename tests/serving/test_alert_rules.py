"""The alert rules name metrics that the service has."""

import re
from pathlib import Path

import yaml

import apood
from apood.serving.http.metrics import Metrics
from apood.serving.http.tally import Tally

RULES = Path(apood.__file__).parent / "serving" / "alerts.yml"
SERIES = Path(__file__).parents[1] / "partners" / "alert_rules_test.yml"


def test_the_metrics_in_the_rules_are_those_of_the_service():
    kinds = {family.name: family.type for family in Metrics(Tally()).registry.collect()}
    offered = {name if kind != "counter" else f"{name}_total" for name, kind in kinds.items()}
    expressions = re.sub(r"#.*|`.*?`", "", RULES.read_text(encoding="utf-8"))
    named = set(re.findall(r"\bapood_\w+", expressions))
    assert len(named) == 7 and named <= offered


def test_every_alert_is_tried_with_its_present_description():
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"][0]["rules"]
    (tried,) = yaml.safe_load(SERIES.read_text(encoding="utf-8"))["tests"]
    expected = {
        case["alertname"]: alert["exp_annotations"]["description"]
        for case in tried["alert_rule_test"]
        for alert in case.get("exp_alerts", [])
    }
    assert expected == {rule["alert"]: rule["annotations"]["description"] for rule in rules}


def test_every_gauge_of_the_drift_alarm_is_shown():
    alarm, metrics = apood.DriftAlarm([0.0]), Metrics(Tally())
    metrics.show_drift(alarm.gauges())
    shown = metrics.render(0)[0].decode()
    assert all(f"\napood_drift_{name} {float(value)}\n" in shown for name, value in alarm.gauges().items())
