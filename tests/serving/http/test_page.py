"""The page for people, and the explanations that it shows."""

import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from http_server import FOREIGN, KNOWN, Running, run_service

from apood import KNN, load
from apood.serving.http.served import Served

TEXT = " ".join([*KNOWN, *FOREIGN, *KNOWN])


def test_the_page_loads_nothing_from_elsewhere_and_has_a_strict_policy(served: Served) -> None:
    with run_service(
        served, tokens=("a-token-of-the-tests",), headers={"authorization": "Bearer a-token-of-the-tests"}
    ) as s:
        for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
            answer = s.client.get(path, headers={"authorization": ""})  # the page itself needs no token
            assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "*" not in policy
            assert not re.search(r"https?://|//[a-z]|innerHTML|\bon[a-z]+=|style=|eval", answer.text)


class Labels(HTMLParser):
    """Collects the ids of a page, and those that labels and descriptions name."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.named: set[str] = set()
        self.fields: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {str(given["id"])} if "id" in given else set()
        self.named |= {str(given[key]) for key in ("for", "aria-describedby", "aria-labelledby") if key in given}
        if tag in ("textarea", "input"):
            self.fields.add(str(given["id"]))


def test_every_field_has_a_label_and_the_script_finds_what_it_names() -> None:
    folder = files("apood.serving.http")
    page = Labels()
    page.feed(folder.joinpath("page.html").read_text(encoding="utf-8"))
    assert page.fields <= page.named <= page.ids
    named = set(re.findall(r'find\("(\w+)"\)', folder.joinpath("page.js").read_text(encoding="utf-8")))
    assert named and named <= page.ids


def test_a_score_is_explained_as_offline(server: Running, detector_folder) -> None:
    answer = server.client.post("/v1/explain", json={"text": TEXT})
    assert answer.status_code == 200, answer.text
    found, (expected,) = answer.json(), load(detector_folder).explain([TEXT])
    assert "text" not in found and found["accepted"] == expected.accepted
    assert found["score"] == pytest.approx(expected.score, rel=1e-4)
    assert [TEXT[word["start"] : word["end"]] for word in found["words"]] == [
        expected.cut(one) for one in expected.words
    ]
    assert [word["contribution"] for word in found["words"]] == pytest.approx(
        [word.contribution for word in expected.words], rel=1e-3, abs=1e-6
    )
    assert [word["level"] for word in found["words"]] == expected.grade_words()
    assert found["note"] is None

    short = server.client.post("/v1/explain", json={"text": FOREIGN[0]}).json()
    assert short["note"].startswith("It is shorter than 99%")


def test_what_cannot_be_explained_is_refused(server: Running, served: Served) -> None:
    for body in ({"text": "  "}, {"texts": [TEXT]}, {"text": 1}, {}):
        answer = server.client.post("/v1/explain", json=body)
        assert answer.status_code == 422 and answer.json()["error"]["message"].endswith(".")
    assert server.client.post("/v1/explain", content=b"text").status_code == 415

    class Opaque(KNN):
        name = "opaque"
        explains = False

    opaque = Served(served.detector, served.encoder, "opaque")
    opaque.detector = Opaque()
    with pytest.raises(ValueError, match="not made of parts"):
        opaque.prepare_explanation(TEXT)
