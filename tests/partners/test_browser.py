"""The page in a real Chromium: used by the keyboard, without errors, foreign hosts or barriers."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from environments import find_python, needs
from http_server import FOREIGN, run_service

from apood.serving.http.served import Served

pytestmark = [
    *needs("browser"),
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed: run make test-partners"),
]


@pytest.mark.parametrize("drifted", [False, True])
def test_the_page_works_by_keyboard_in_light_and_dark(served: Served, drifted: bool) -> None:
    text = " ".join(FOREIGN * 2)
    with run_service(served) as server:
        if drifted:
            server.client.post("/v1/score", json={"texts": [text] * 40}).raise_for_status()
        command = [str(find_python("browser")), str(Path(__file__).with_name("browse_page.py")), server.url, text]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout)
        said = "The scores have drifted towards lower ones." if drifted else "No drift was found."
        assert found["light"]["drift"] == said  # after one text of the page; a few more of this kind are drift
        for seen in found.values():
            assert "are shorter or longer than 99%" in seen["lengths"]
            assert seen["errors"] == [] and seen["hosts"] == [server.url]
            assert seen["decision"] == "Out-of-distribution: refused" and "p-value" in seen["numbers"]
            assert seen["marked"] == text and seen["marks"] > 0
            assert "out-of-distribution" in seen["summary"]
            assert not [one for one in seen["violations"] if one[1] in ("serious", "critical")], seen["violations"]
