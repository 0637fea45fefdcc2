"""The rows of the text benchmark: which there are, and how they are chosen."""

import pytest

from apood.experiments.text.rows import PRIOR_ART, choose_rows, list_rows
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


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("apood.detectors.length:Length", "length and apood.detectors.length:Length are both called length"),
        ("apood.detectors.ap_ood.detector:APOOD", "ap-ood and apood.*:APOOD are both called ap-ood"),
    ],
)
def test_a_class_cannot_have_the_files_of_a_row_of_the_benchmark(given: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        choose_rows([given])


def test_prior_art_is_named_after_rows_that_exist() -> None:
    labels = {entry.label for entry in choose_rows([]).alone}
    assert {label for label, _ in PRIOR_ART} <= labels


def test_rows_that_no_view_changes_are_run_once() -> None:
    rows = choose_rows(["length", "perplexity", "KNN, raw"])
    for channels, first_view, labels in (
        (["token_logprobs"], True, {"length", "perplexity", "KNN, raw"}),
        ([], True, {"length", "KNN, raw"}),
        (["token_logprobs"], False, {"KNN, raw"}),
    ):
        assert {row.label for row in list_rows(rows, channels, 0, first_view=first_view)} == labels


def test_rows_with_aux_grow_with_the_texts_there_are() -> None:
    rows = choose_rows(["ap-ood"])
    assert [row.label for row in list_rows(rows, [], 130, first_view=True)] == [
        "AP-OOD", "AP-OOD, 8 AUX", "AP-OOD, 32 AUX", "AP-OOD, 128 AUX",
    ]  # fmt: skip
