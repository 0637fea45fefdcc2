"""The curve of a training has few points."""

from hypothesis import given
from hypothesis import strategies as st

from apood.fitting.curve import CurvePoint, TrainingCurve


@given(count=st.integers(0, 400))
def test_at_most_a_hundred_points_are_kept_with_both_ends(count):
    points = [CurvePoint(10 * number, 1 / (number + 1), float(number)) for number in range(count)]
    kept = TrainingCurve.thin_out(points).points
    assert len(kept) == min(count, 100) and set(kept) <= set(points) and list(kept) == sorted(kept)
    assert kept[:1] == tuple(points[:1]) and kept[-1:] == tuple(points[-1:])
    assert TrainingCurve.from_tensor(TrainingCurve(kept).to_tensor()) == TrainingCurve(kept)
