"""The alert rules name metrics that the service has."""

import re
from pathlib import Path

import apood
from apood.serving.http.metrics import Metrics
from apood.serving.http.tally import Tally

RULES = Path(apood.__file__).parent / "serving" / "alerts.yml"


def test_the_metrics_in_the_rules_are_those_of_the_service():
    kinds = {family.name: family.type for family in Metrics(Tally()).registry.collect()}
    offered = {name if kind != "counter" else f"{name}_total" for name, kind in kinds.items()}
    expressions = re.sub(r"#.*|`.*?`", "", RULES.read_text(encoding="utf-8"))
    named = set(re.findall(r"\bapood_\w+", expressions))
    assert len(named) == 7 and named <= offered


def test_every_gauge_of_the_drift_alarm_is_shown():
    alarm, metrics = apood.DriftAlarm([0.0]), Metrics(Tally())
    metrics.show_drift(alarm.gauges())
    shown = metrics.render(0)[0].decode()
    assert all(f"\napood_drift_{name} {float(value)}\n" in shown for name, value in alarm.gauges().items())
