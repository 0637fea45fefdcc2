"""AP-OOD keeps the curve and the warnings of its training."""

import pytest
import torch
from test_artefact import replace_tensors

import apood
from apood import APOOD, Fusion
from apood.support.errors import ArtefactError, FitWarning


@pytest.mark.parametrize("steps", [1, 25])
def test_a_fit_keeps_its_curve(train, tmp_path, steps):
    detector = APOOD(steps=steps).fit(train)
    points = detector.training_curve_.points
    assert [point.step for point in points] == sorted({*range(0, steps, 10), steps - 1})
    assert all(torch.isfinite(torch.tensor(points)).flatten())
    Fusion([APOOD(steps=steps)]).fit(train).save(tmp_path / "fusion")
    detector.save(tmp_path / "detector")
    assert apood.load(tmp_path / "detector").training_curve_ == detector.training_curve_
    (member,) = apood.load(tmp_path / "fusion").members_
    assert [point.step for point in member.training_curve_.points] == [point.step for point in points]


def test_a_fit_keeps_its_warnings(train, tmp_path):
    with pytest.warns(FitWarning, match="not settled") as caught:
        detector = APOOD(recipe="paper", steps=5).fit(train)
    assert detector.fit_warnings_ == [str(one.message) for one in caught]
    detector.save(tmp_path / "detector")
    assert apood.load(tmp_path / "detector").fit_warnings_ == detector.fit_warnings_
    assert APOOD(steps=25).fit(train).fit_warnings_ == []


@pytest.mark.parametrize(
    "numbers", [[0.0, 1.0], [0.0, float("nan"), 1.0], [10.0, 1.0, 1.0, 0.0, 1.0, 1.0], [0.0] * 303], ids=len
)
def test_a_curve_that_nobody_can_have_learnt_is_refused(train, tmp_path, numbers):
    APOOD(steps=1).fit(train).save(tmp_path / "detector")
    replace_tensors(
        tmp_path / "detector", lambda tensors: tensors.update(training_curve_=torch.tensor(numbers).double())
    )
    with pytest.raises(ArtefactError, match="training_curve_"):
        apood.load(tmp_path / "detector")
