"""Log-mel features against those of transformers."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from tiny_audio import noise, tone

from apood.encoders.audio.spectrogram import PREPROCESSOR_FILE, LogMel
from apood.support.errors import InputError


@pytest.mark.filterwarnings("ignore:At least one mel filter")
@pytest.mark.parametrize("options", [{}, {"num_mel_bins": 64, "max_length": 200}, {"do_normalize": False}])
def test_features_are_those_of_transformers(tmp_path: Path, options: dict[str, int]) -> None:
    theirs = transformers.ASTFeatureExtractor(**options)
    theirs.save_pretrained(tmp_path)
    ours = LogMel.load(tmp_path)
    sounds = [tone(1.0, 0, 16_000), noise(2.5, 1, 16_000), 0.2 + tone(0.05, 2, 16_000)]
    expected = theirs(sounds, sampling_rate=16_000, return_tensors="pt")["input_values"]
    for sound, one in zip(sounds, expected, strict=True):
        torch.testing.assert_close(ours.pad(ours.compute(sound)), one, atol=1e-4, rtol=1e-4)


def test_what_is_saved_is_read_by_transformers(tmp_path: Path) -> None:
    ours = LogMel(rate=8000, mel_bins=40, frames=100, mean=-3.0, std=2.0)
    ours.save(tmp_path)
    assert LogMel.load(tmp_path) == ours
    theirs = transformers.AutoFeatureExtractor.from_pretrained(tmp_path)
    assert isinstance(theirs, transformers.ASTFeatureExtractor)
    assert (theirs.sampling_rate, theirs.num_mel_bins, theirs.max_length) == (8000, 40, 100)
    assert (theirs.mean, theirs.std, theirs.do_normalize) == (-3.0, 2.0, True)


@pytest.mark.parametrize("rate", [8000, 44_100])
def test_frames_and_samples_are_counted_alike_at_every_rate(rate: int) -> None:
    measure = LogMel(rate=rate, mel_bins=20)
    for frames in (1, 2, 32):
        samples = measure.count_samples(frames)
        assert measure.count_frames(samples) == frames == len(measure.compute(noise(1, 0, rate)[:samples]))
        assert measure.count_frames(samples - 1) == frames - 1


def test_a_tone_is_loudest_in_its_own_band_and_noise_grows_with_the_width_of_the_bands() -> None:
    measure = LogMel(rate=8000, mel_bins=40)
    hum, hiss = (measure.compute(sound).mean(0).argmax() for sound in (tone(1.0, 0), noise(1.0, 0)))
    assert 14 <= int(hum) <= 21  # 0.8 to 1.2 kHz of the 4 kHz there are
    assert int(hiss) > 35


def test_a_folder_without_readable_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no preprocessor_config"):
        LogMel.load(tmp_path)
    for content in ("{", "[]", json.dumps({"max_length": "many"}), '{"sampling_rate": Infinity}', "[" * 100_000):
        (tmp_path / PREPROCESSOR_FILE).write_text(content)
        with pytest.raises(InputError, match="not a JSON object"):
            LogMel.load(tmp_path)
