"""The rows of the text benchmark: which there are, and how they are chosen."""

import pytest

from apood.experiments.text.rows import choose_rows, list_rows
from apood.support.errors import InputError


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mahalanobiss", "There is no method 'mahalanobiss' .did you mean 'mahalanobis'"),
        ("no_such_module:A", "cannot be imported: ModuleNotFoundError"),
        ("json:loads", "not a subclass of Detector"),
    ],
)
def test_an_unknown_method_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        choose_rows([name])


def test_rows_are_chosen_by_method_or_by_label() -> None:
    assert [entry.label for entry in choose_rows(["knn"]).alone] == [
        "KNN, raw", "KNN, tokens", "KNN, pooled", "KNN 1, pooled",
    ]  # fmt: skip
    assert len(choose_rows(["KNN, raw", "knn"]).alone) == 4, "each once"
    assert choose_rows(["binary-logits"]).alone == ()
    assert [entry.label for entry in choose_rows(["default"]).learning] == ["default"]
    for entry in (*choose_rows([]).alone, *choose_rows([]).learning):
        entry.check()


def test_avg_avg_is_raw_mahalanobis_on_mixed_layers() -> None:
    rows = choose_rows(["mahalanobis"])
    labels = {view: [row.label for row in list_rows(rows, view, (), 0, first_view=True)] for view in ("mix", "last")}
    assert labels["mix"][0] == "Avg-Avg (Mahalanobis, raw)" and labels["last"][0] == "Mahalanobis, raw"
