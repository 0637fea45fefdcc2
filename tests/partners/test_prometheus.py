"""The alert rules work: promtool, a part of Prometheus, reads them and evaluates them on series of values."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import apood

RULES = Path(apood.__file__).parent / "serving" / "alerts.yml"
SERIES = Path(__file__).parent / "alert_rules_test.yml"

pytestmark = [
    pytest.mark.partners,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: run make test-partners"),
]


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60)


def test_the_rules_are_valid():
    names = re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8"))
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0 and f"SUCCESS: {len(names)} rules found" in done.stdout, done.stderr


@pytest.mark.parametrize("broken", [False, True])
def test_the_alerts_go_off_when_they_should(tmp_path, broken):
    rules = RULES.read_text(encoding="utf-8")
    (tmp_path / "alerts.yml").write_text(
        rules.replace("drift_alarm == 1", "drift_alarm == 0" if broken else "drift_alarm == 1")
    )
    shutil.copy(SERIES, tmp_path)
    done = promtool("test", "rules", tmp_path / SERIES.name)
    assert (done.returncode != 0) == broken, done.stdout + done.stderr
