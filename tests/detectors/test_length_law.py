"""How distances fall with the length of a sequence."""

import numpy as np
import pytest
import torch

from apood.detectors.fusion import Fusion
from apood.detectors.knn import KNN
from apood.detectors.mahalanobis import Mahalanobis
from apood.detectors.shared.log_distances import LengthLaw
from apood.evaluation.metrics import auroc


def test_the_law_is_the_regression_line():
    lengths = torch.arange(5, 205)
    logs = torch.stack([-0.5 * lengths.double().log() + 3, 0.2 * lengths.double().log()], 1)
    law = LengthLaw.fit(logs, lengths)
    inner = lengths.double().log().clamp(law.shortest, law.longest)
    assert law.mean == pytest.approx(float(inner.mean()))
    np.testing.assert_allclose(law.slopes, np.polyfit(inner, logs, 1)[0], rtol=1e-9)


def test_only_lengths_with_smaller_distances_get_an_allowance():
    law = LengthLaw(1.0, 3.0, 5.0, (-0.5, 0.2))
    found = law.compute_allowances(torch.tensor([1, 20, 100, 1000]))
    logs = np.log([np.e, 20, 100, np.exp(5.0)])
    np.testing.assert_allclose(found[:, 0], np.minimum(-0.5 * (logs - 3), 0))
    np.testing.assert_allclose(found[:, 1], np.minimum(0.2 * (logs - 3), 0))


def test_it_is_stored_as_one_tensor():
    law = LengthLaw(1.0, 3.0, 5.0, (-0.5, 0.2))
    assert law.to_tensor().tolist() == [1.0, 3.0, 5.0, -0.5, 0.2]
    assert LengthLaw.from_tensor(law.to_tensor()) == law


def test_chance_is_no_law():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 300, (40,), generator=generator)
    slopes = [LengthLaw.fit(torch.randn(40, 1, generator=generator), lengths).slopes[0] for _ in range(200)]
    assert sum(slope != 0 for slope in slopes) < 25  # some 5% of 200 pass by chance


def test_equal_lengths_and_unknown_distances_have_no_law():
    assert LengthLaw.fit(torch.randn(50, 2), torch.full((50,), 7)).slopes == (0.0, 0.0)
    unknown = torch.full((50, 1), torch.nan)
    assert LengthLaw.fit(unknown, torch.arange(1, 51)).slopes == (0.0,)


def test_long_foreign_sequences_are_no_longer_the_most_ordinary_ones():
    """Means of more tokens spread less, so that the mean of a long foreign sequence is nearer than an ordinary one."""
    generator = torch.Generator().manual_seed(0)

    def bag(length, shift=0.0):
        return torch.randn(length, 16, generator=generator) + shift

    train = [bag(int(n)) for n in torch.randint(8, 200, (600,), generator=generator)]
    test = [bag(int(n)) for n in torch.randint(8, 200, (200,), generator=generator)]
    foreign = [bag(200, 0.07) for _ in range(200)]
    alone = Mahalanobis().fit(train)
    fused = Fusion([Mahalanobis(), KNN(normalize="none")]).fit(train)
    before, after = (auroc(d.score_samples(test), d.score_samples(foreign)).value for d in (alone, fused))
    assert before < 0.5 < 0.7 < after
