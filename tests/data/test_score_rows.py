"""Rows of scores and verdicts: what is read, and what is refused with its place."""

import math

import pytest

from apood.data.record import BadRecord
from apood.data.score_rows import Reviewed, read_reviewed, read_scores


@pytest.fixture
def read(tmp_path):
    """A function that reads a text: the items of good records, and the reasons of bad ones."""

    def read_text(text, reader=read_scores):
        file = tmp_path / "rows"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        records = list(reader(str(file)))
        return [
            record.reason.replace(repr(str(file)), "F") if isinstance(record, BadRecord) else record.item
            for record in records
        ]

    return read_text


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ('{"score": 1, "text": "a"}\n\n{"score": null}\n', [1.0, -math.inf]),
        ("\ufeff1.5\n-inf\n", [1.5, -math.inf]),
        ('score,reason\n1,"a, b"\n,\n', [1.0, -math.inf]),
        ("", []),
        ("index,score\n", []),
        ('text,score\n"one\n\ntwo",1\n"a ""b""\r\nc",2\r\n', [1.0, 2.0]),
        (f"score,text\n1,{'a' * 200_000}\n", [1.0]),
    ],
)
def test_the_first_line_decides_the_format(read, text, scores):
    assert read(text) == scores


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"score": 1}\n{"score"', "Line 2 of F is not valid JSON"),
        ('{"score": 1}\n[1]', "Line 2 of F must be a JSON object, got a list."),
        ('{"value": 1, "b": 2}', "Line 1 of F has no field 'score': there are 'value', 'b'."),
        ('{"score": true}', "Line 1 of F must have a number as its score, got True."),
        ('{"score": [1]}', "Line 1 of F must have a number as its score, got a list."),
        ('{"score": NaN}', "Line 1 of F must have a number as its score, got nan."),
        ("1\nhigh\n", "Line 2 of F must have a number as its score, got 'high'."),
        ("1\nnan\n", "Line 2 of F must have a number as its score, got 'nan'."),
        ("a,score\n1\n", "Line 2 of F has 1 cells, but the header has 2."),
        ("a,b\n1,2\n", "Line 2 of F has no field 'score': there are 'a', 'b'."),
        ('text,score\n"a\nb",1\n"a\nb",high\nc,2\n', "Line 4 of F must have a number as its score, got 'high'."),
        ('text,score\na,1\n"b,2\nc,3\n', "Line 3 of F is not valid CSV (unexpected end of data)."),
        (b'text,score\n"a\n\xff",1\nb,2\n', "Line 2 of F is not UTF-8: byte 1 of the line cannot be decoded."),
        ('text,score\n"' + "\n" * (1 << 20), "Line 2 of F is not valid CSV (the row is longer than 1 MiB)."),
        (b"1\n\xff\n", "Line 2 of F is not UTF-8: byte 1 of the line cannot be decoded."),
        (b"1\n" + b"9" * 3_000_000 + b"\n2\n", "Line 2 of F is longer than 1 MiB."),
        ('{"score": 1}\n' + "[" * 100_000, "Line 2 of F is not valid JSON"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(read, text, reason):
    (found,) = [item for item in read(text) if isinstance(item, str)]
    assert found.startswith(reason)


def test_reading_goes_on_after_a_bad_row(read):
    assert read(b"1\n" + b"9" * 3_000_000 + b"\nx\n2\n")[0::3] == [1.0, 2.0]


def test_verdicts_and_probabilities(read):
    rows = '{"score": 1, "verdict": "ID"}\n{"score": 2, "verdict": "ood", "probability": 0.5}\n'
    assert read(rows, read_reviewed) == [Reviewed(1.0, True, 1.0), Reviewed(2.0, False, 0.5)]
    assert read("score,verdict,probability\n1,OOD,0.25\n", read_reviewed) == [Reviewed(1.0, False, 0.25)]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"score": 1}', "Line 1 of F has no field 'verdict': there are 'score'."),
        ('{"score": 1, "verdict": null}', "Line 1 of F must have ID or OOD as its verdict, got null."),
        ('{"score": 1, "verdict": "good"}', "Line 1 of F must have ID or OOD as its verdict, got 'good'."),
        ("1.5", "Line 1 of F has no field 'verdict': there are 'score'."),
        ('{"score": 1, "verdict": "ID", "probability": 0}', "Line 1 of F must have a number above 0 and at most 1 as"),
        ('{"score": 1, "verdict": "ID", "probability": null}', "Line 1 of F must have a number above 0 and at most 1"),
    ],
)
def test_a_review_that_cannot_be_used_is_named(read, row, reason):
    (found,) = read(row, read_reviewed)
    assert found.startswith(reason)


def test_a_quote_that_is_never_closed_costs_its_own_row_alone(read):
    first, *scores = read('score,text\n3,"unclosed\n1,"a\nb"\n2,c\n')
    assert "Line 2 of F is not valid CSV" in first
    assert scores[-1] == 2.0
    assert read('score,text\n1,a\n3,"unclosed\n2,c\n4,d\n')[2:] == [2.0, 4.0]
