"""Texts that occur often get one decision, whatever they are scored with, though encoders round."""

import random

import numpy as np
import pytest
import torch
from tiny_models import WORDS

from apood import KNN, TextEncoder, TokenStore, TokenStoreWriter


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_repeated_text_is_accepted_alone_and_among_others(models, tmp_path, dtype):
    """30% of the calibration texts, stored in float16, are one text, whose score is the threshold."""
    dice = random.Random(0)
    texts = [" ".join(dice.choices(WORDS, k=dice.randint(3, 20))) for _ in range(120)]
    encoder = TextEncoder(models("bert"), device="cpu", dtype=dtype)
    detector = KNN(k=1).fit(encoder.encode(texts[:60]))
    ranked = np.argsort(detector.score_samples(encoder.encode(texts[60:])))
    at_threshold = 0
    for place in range(12):
        repeated = texts[60 + ranked[place]]
        higher = [texts[60 + other] for other in ranked[place + 1 :]]
        with TokenStoreWriter(tmp_path / str(place), dim=encoder.dim, encoder=encoder.identity) as writer:
            writer.append(encoder.encode([*higher, *[repeated] * 20]))
        calibration = detector.calibrate(TokenStore(tmp_path / str(place))).calibration
        at_threshold += int(np.isclose(calibration.scores[:20], calibration.scores[0], rtol=1e-2).all())
        for beside in (0, 1, 5, 30):
            scored = encoder.encode([*dice.sample(texts, beside), repeated])
            assert detector.predict(scored)[-1] == 1, f"refused beside {beside} others"
            assert detector.p_values(scored)[-1] > 0.05
    assert at_threshold
