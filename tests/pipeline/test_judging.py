"""Judgements are made while the encoder runs the next texts, as with a GPU, and are the same and in the same order."""

import pytest
from word_encoder import WordEncoder

from apood import KNN
from apood.data.record import Record, Skipped
from apood.encoders import embed
from apood.pipeline.judging import judge_records
from apood.support.background import BackgroundCalls
from apood.support.errors import InputError

TEXTS = [f"{'abc'[number % 3] * 5} word{number} {'x' * (number % 7)}" for number in range(40)]


@pytest.fixture(autouse=True)
def _small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "_PORTION_SEQUENCES", 4)
    monkeypatch.setattr(embed, "_FIRST_SEQUENCES", 4)


@pytest.fixture
def overlapping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apood.pipeline.judging.follow_encoder", lambda _: BackgroundCalls())


@pytest.fixture(scope="module")
def detector() -> KNN:
    encoder = WordEncoder()
    fitted = KNN(k=1).fit(encoder.encode(TEXTS[:20]))
    return fitted.calibrate(encoder.encode(TEXTS[20:]))


def judge(detector: KNN, texts=TEXTS, **options):
    records = [Record(text, f"text {number}") for number, text in enumerate(texts)]
    return judge_records(records, WordEncoder(), detector, **options)


def test_judgements_are_the_same(detector: KNN, request: pytest.FixtureRequest) -> None:
    expected = list(judge(detector))
    request.getfixturevalue("overlapping")
    assert list(judge(detector)) == expected and len(expected) == len(TEXTS)
    assert [record.item for record, _ in expected] == TEXTS


@pytest.mark.usefixtures("overlapping")
def test_texts_before_an_error_are_judged(detector: KNN) -> None:
    found = []
    with pytest.raises(InputError, match="run failed at"):
        for record, _ in judge(detector, [*TEXTS[:9], "now run", *TEXTS]):
            found.append(record.item)
    assert found == TEXTS[:8]


@pytest.mark.usefixtures("overlapping")
def test_a_text_is_judged_before_the_next_one_is_waited_for(detector: KNN) -> None:
    given = 0

    def wait_for_texts():
        nonlocal given
        for text in TEXTS[:5]:
            given += 1
            yield Record(text, "")

    judged = judge_records(wait_for_texts(), WordEncoder(), detector, skipped=Skipped(), ready=lambda: False)
    assert [given for _ in judged] == [1, 2, 3, 4, 5]
