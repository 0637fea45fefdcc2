"""The service answers as offline scoring does, whatever the batch, and describes itself."""

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from http_server import FOREIGN, KNOWN, Running, make_texts, run_service
from safetensors.torch import save

from apood import KNN, Fusion, TextDetector, TextEncoder, TokenBatch, load
from apood.decisions.conformal import Calibration
from apood.pipeline.facts import Facts
from apood.pipeline.seen import Seen
from apood.serving.http.served import Served, load_served
from apood.support.errors import InputError

NEW = [*make_texts(40, KNOWN, 5), *make_texts(20, FOREIGN, 6), *make_texts(5, KNOWN + FOREIGN, 7, 120)]


def score(server: Running, texts: list[str]) -> list[dict]:
    answer = server.client.post("/v1/score", json={"texts": texts})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


@pytest.fixture(scope="module")
def offline(detector_folder: Path) -> TextDetector:
    found = load(detector_folder)
    assert isinstance(found, TextDetector)
    return found


def check_same(results: list[dict], texts: list[str], offline: TextDetector) -> None:
    expected = offline.judge(texts)
    spread = np.std(offline.detector.calibration.scores)
    np.testing.assert_allclose([own["score"] for own in results], [own.score for own in expected], atol=1e-4 * spread)
    np.testing.assert_allclose([own["p_value"] for own in results], [own.p_value for own in expected])
    assert [own["decision"] == "ID" for own in results] == [own.accepted for own in expected]
    assert [own["accepted"] for own in results] == [own.accepted for own in expected]
    assert [own["tokens"] for own in results] == [own.tokens for own in expected]
    assert [own["windows"] for own in results] == [own.windows for own in expected]


def test_a_list_is_judged_as_offline(server: Running, offline: TextDetector) -> None:
    results = score(server, NEW)
    check_same(results, NEW, offline)
    assert {own["decision"] for own in results} == {"ID", "OOD"} and max(own["windows"] for own in results) > 1


def test_tokens_are_counted_as_offline_if_special_ones_are_left_out(detector_folder: Path, tmp_path: Path) -> None:
    encoder = TextEncoder(detector_folder.parent / "bert", max_tokens=24, special_tokens=False)
    TextDetector(encoder, KNN(k=3), accept=0.9).fit(make_texts(200, KNOWN, 1)).save(tmp_path / "detector")
    offline = load(tmp_path / "detector")
    assert isinstance(offline, TextDetector)
    with run_service(load_served(tmp_path / "detector")) as server:
        results = score(server, NEW)
    check_same(results, NEW, offline)
    rows = zip(results, offline.judge(NEW), strict=True)
    assert all(own["note"] == row.note for own, row in rows if row.accepted), "a usual length has no note"


def test_a_detector_of_sentences_judges_as_offline(detector_folder: Path, tmp_path: Path) -> None:
    def make_stories(count: int, seed: int) -> list[str]:
        parts = iter(make_texts(4 * count, KNOWN, seed, 8))
        return [". ".join(next(parts) for _ in range(4)) for _ in range(count)]

    encoder = TextEncoder(detector_folder.parent / "bert", max_tokens=24)
    detector = Fusion([KNN(k=3)], sentences=True)
    TextDetector(encoder, detector, accept=0.9).fit(make_stories(200, 1)).save(tmp_path / "detector")
    offline = load(tmp_path / "detector")
    assert isinstance(offline, TextDetector)
    spliced = [
        f"{story}. {foreign}" for story, foreign in zip(make_stories(9, 2), make_texts(9, FOREIGN, 3), strict=True)
    ]
    texts = [*make_stories(20, 4), *spliced, *NEW, *(". ".join(make_stories(4, seed)) for seed in (5, 6))]
    with run_service(load_served(tmp_path / "detector")) as server:
        results = score(server, texts)
        check_same(results, texts, offline)
        answer = server.client.post("/v1/explain", json={"text": spliced[0]})
    assert answer.status_code == 200, answer.text
    assert max(own["windows"] for own in results) > 1


def test_concurrent_single_texts_are_judged_as_offline(server: Running, offline: TextDetector) -> None:
    def ask(text: str) -> dict:
        answer = server.client.post("/v1/score", json={"text": text})
        assert answer.status_code == 200, answer.text
        (result,) = answer.json()["results"]
        return result

    with ThreadPoolExecutor(16) as pool:
        check_same(list(pool.map(ask, NEW)), NEW, offline)


def test_token_arrays_are_judged_as_their_texts(server: Running, offline: TextDetector) -> None:
    batch = offline.encoder.encode(NEW)
    window = batch.channels["window"]
    body = save(
        {
            "values": batch.values,
            "offsets": batch.offsets,
            "channel.window.values": window.values,
            "channel.window.offsets": window.offsets,
        }
    )
    answer = server.client.post("/v1/score", content=body, headers={"content-type": "application/vnd.safetensors"})
    assert answer.status_code == 200, answer.text
    check_same(answer.json()["results"], NEW, offline)


def test_what_cannot_be_scored_is_refused_by_name(server: Running) -> None:
    empty, far = score(server, ["  ", " ".join(KNOWN * 230)])
    for result in (empty, far):
        assert not result["accepted"] and result["decision"] == "OOD"
        assert result["score"] is None and result["passes_above"] is None
    assert empty["note"] == "The input is empty."
    assert "windows" in far["note"]


def test_a_refused_text_of_an_unusual_length_has_both_in_its_note(server: Running) -> None:
    (short,) = score(server, [FOREIGN[0]])
    assert short["decision"] == "OOD"
    assert short["note"].startswith("The input is out-of-distribution: ") and "It is shorter than 99%" in short["note"]


def test_many_texts_of_unusual_lengths_are_warned_of_once(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    learnt, used = Seen(9, 9, 90, 3, 30, ""), Seen(9, 9, 90, 5, 12, "")
    watched = Served(
        served.detector, served.encoder, served.digest, Facts(learnt, used)
    )  # the threshold's lengths count
    usual, short = " ".join(KNOWN), KNOWN[0]  # 8 tokens and 3
    with run_service(watched) as server:
        score(server, [usual] * 80 + [""] * 40)
        score(server, [short] * 8)
        score(server, [usual] * 12)
        assert not caplog.records
        score(server, [short] * 4)
        score(server, [short] * 40)
        (warning,) = caplog.messages
        assert warning.startswith(
            "12 of 104 texts are shorter or longer than 99% of the texts that set the threshold (5 "
        )
        assert server.client.get("/v1/shadow").json()["unusual_lengths"] == 52
        assert "apood_unusual_lengths_total 52.0" in server.client.get("/metrics").text


def test_a_text_passes_above_the_accept_rate_that_the_result_names(server: Running, offline: TextDetector) -> None:
    scores = offline.detector.calibration.scores
    highest = 1 - 1 / (len(scores) + 1)  # accept rate
    scored = [own for own in score(server, NEW) if own["score"] is not None]
    chosen = [own for own in scored if 1e-4 < own["passes_above"] < highest - 1e-4]
    assert chosen and len(chosen) < len(scored)
    for result in chosen:
        above, below = (Calibration.from_scores(scores, result["passes_above"] + step) for step in (1e-4, -1e-4))
        assert above.accepts([result["score"]]).all() and not below.accepts([result["score"]]).any()


def test_the_detector_describes_itself(server: Running, offline: TextDetector) -> None:
    facts = server.client.get("/v1/detector").json()
    assert facts["method"] == "knn" and facts["accept"] == 0.9
    assert facts["threshold"] == offline.detector.threshold_
    assert "folder" not in facts["encoder"] and facts["limits"]["texts"] == 256
    assert server.client.get("/healthz").status_code == 204
    schema = server.client.get("/openapi.json").json()
    assert {"/v1/score", "/v1/detector", "/v1/shadow", "/healthz", "/readyz", "/metrics"} <= schema["paths"].keys()


def test_a_threshold_of_minus_infinity_is_null(served: Served) -> None:
    detector = copy.copy(served.detector)
    detector.calibration = Calibration.from_scores([-np.inf] * 20 + [0.0] * 20, 0.9)
    with run_service(Served(detector, served.encoder, "digest")) as server:
        for answer in (
            server.client.get("/v1/detector"),
            server.client.post("/v1/explain", json={"text": "word1 word2"}),
        ):
            assert answer.status_code == 200 and answer.json()["threshold"] is None


def test_metrics_count_and_hold_no_input(server: Running) -> None:
    score(server, ["word1 word2 word3"])
    metrics = server.client.get("/metrics").text
    assert 'apood_texts_total{decision="ID"}' in metrics
    assert 'apood_requests_total{route="/v1/score",status="200"}' in metrics
    assert "word1" not in metrics


def test_shadow_mode_refuses_nothing_and_counts_what_would_be_refused(served: Served) -> None:
    with run_service(served, shadow=True) as server:
        results = score(server, NEW)
        assert all(own["accepted"] for own in results)
        assert {own["decision"] for own in results} == {"ID", "OOD"}
        counts = server.client.get("/v1/shadow").json()
        assert counts["shadow"] and counts["judged"] == len(NEW)
        assert counts["ood"] == sum(own["decision"] == "OOD" for own in results)
        for row in counts["rates"]:
            expected = sum(own["score"] is None or own["p_value"] <= 1 - row["accept"] + 1e-9 for own in results)
            assert row["refused"] == expected and row["share"] == expected / len(NEW)
        at = {row["accept"]: row["refused"] for row in counts["rates"]}
        assert at[0.9] == counts["ood"] and at[0.8] >= at[0.9] >= at[0.99]
        assert f'apood_would_refuse_total{{accept_rate="0.9"}} {at[0.9]}.0' in server.client.get("/metrics").text
        assert counts["minutes"][-1]["judged"] == len(NEW)


@pytest.mark.parametrize("on_long", ["windows", "beginning", "refuse"])
def test_every_service_is_warmed_up(detector_folder: Path, on_long: str) -> None:
    encoder = TextEncoder(detector_folder.parent / "bert", max_tokens=24, on_long=on_long)
    train, held_out = (encoder.encode(make_texts(60, KNOWN, seed)) for seed in (1, 2))
    served = Served(KNN().fit(train).calibrate(held_out), encoder, "digest")
    assert sum(served.make_warm_up().sizes) >= served.batch_tokens / 2


def test_a_detector_without_an_encoder_takes_token_arrays_only() -> None:
    from apood import KNN

    tokens = [torch.randn(5, 8, generator=torch.Generator().manual_seed(n)) for n in range(40)]
    detector = KNN(k=1).fit(tokens[:20]).calibrate(tokens[20:])
    batch = TokenBatch.from_sequences(tokens[:3])
    with run_service(Served(detector, None, "tokens")) as server:
        body = save({"values": batch.values, "offsets": batch.offsets})
        answer = server.client.post("/v1/score", content=body, headers={"content-type": "application/octet-stream"})
        np.testing.assert_allclose([own["score"] for own in answer.json()["results"]], detector.score_samples(batch))
        answer = server.client.post("/v1/score", json={"text": "a"})
        assert answer.status_code == 422 and "send token arrays" in answer.json()["error"]["message"]
        assert server.client.get("/v1/detector").json()["takes"] == ["tokens"]


def test_the_contract_is_kept_with_the_detector_and_checked(detector_folder: Path, tmp_path: Path) -> None:
    assert load_served(detector_folder).chat == "last-user"
    assert load_served(detector_folder, chat="whole").chat == "whole"
    detector = load(detector_folder)
    detector.facts = replace(detector.facts, chat="all-user")
    detector.save(tmp_path / "chat")
    assert load(tmp_path / "chat").facts.chat == "all-user"
    assert load_served(tmp_path / "chat").chat == load_served(tmp_path / "chat", chat="all-user").chat == "all-user"
    with pytest.raises(InputError, match="built from texts of the kind all-user"):
        load_served(tmp_path / "chat", chat="last-user")
