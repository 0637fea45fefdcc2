"""AudioEncoder against the models themselves, run on one sound at a time."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from plain_loop import pick_states
from tiny_audio import make_audio_model, noise, tone

from apood.data.record import Sound
from apood.encoders.audio.encoder import AudioEncoder
from apood.encoders.base.pretrained import is_audio_model
from apood.support.errors import InputError
from apood.tokens.identity import same_encoder

FULL = 400 + 63 * 160  # samples that fill the 64 frames of the model
ROWS, COLUMNS = 3, 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_audio_model(tmp_path_factory.mktemp("audio") / "tiny-ast")


@pytest.fixture(scope="module")
def sounds() -> list[Sound]:
    lengths = [FULL, FULL + 5000, 400 + 15 * 160, 400 + 16 * 160, 400 + 40 * 160, FULL - 1]
    made = [make(1.5, seed, 16_000) for seed, make in enumerate([tone, noise] * 30)]
    return [Sound(samples[: lengths[i % 6]], 16_000) for i, samples in enumerate(made)]


def reference(folder: Path, sound: Sound, layers: int | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the patch states and logits of a single sound, from the model of transformers."""
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    model = transformers.AutoModelForAudioClassification.from_pretrained(folder)
    values = extractor(sound.samples, sampling_rate=sound.rate, return_tensors="pt")["input_values"]
    with torch.no_grad():
        output = model(values, output_hidden_states=True)
        last = model.audio_spectrogram_transformer(values).last_hidden_state
        states = pick_states(last, output.hidden_states, layers)
    frames = 1 + (len(sound.samples) - 400) // 160
    columns = sum(8 * column < frames for column in range(COLUMNS))
    grid = states[0, 2:].view(ROWS, COLUMNS, -1)[:, :columns]
    return grid.flatten(0, 1), output.logits


@pytest.mark.parametrize("layers", [-1, 0, 2, 3, "mix", "mix:0,3"])
def test_states_and_logits_equal_batches_of_one(folder: Path, sounds: list[Sound], layers: int | str) -> None:
    encoder = AudioEncoder(folder, layers=layers, device="cpu")
    assert not encoder._reader.needs_all
    batch = encoder.encode(sounds)
    assert (len(batch), batch.dim, batch.dtype) == (len(sounds), 16, torch.float32)
    logits = batch.channels["logits"]
    assert set(logits.lengths.tolist()) == {1}
    for states, own, sound in list(zip(batch, logits, sounds, strict=True))[:12]:
        expected, expected_logits = reference(folder, sound, layers)
        torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(own, expected_logits, atol=1e-5, rtol=1e-5)


def test_the_last_layer_is_normalised_and_the_one_with_its_number_is_not(folder: Path, sounds: list[Sound]) -> None:
    last, before = (AudioEncoder(folder, layers=layer, device="cpu").encode(sounds[:2]) for layer in (-1, 3))
    assert not torch.allclose(last.values, before.values, atol=0.1)
    assert torch.equal(before.values, AudioEncoder(folder, layers=3, device="cpu").encode(sounds[:2]).values)
    assert AudioEncoder(folder, layers=-3, device="cpu").identity["layers"] == "1"


def test_padding_gives_no_tokens(folder: Path, sounds: list[Sound]) -> None:
    encoder = AudioEncoder(folder, device="cpu")
    assert encoder.encode(sounds[:6]).lengths.tolist() == [21, 21, 6, 9, 18, 21]
    assert encoder.max_tokens == 21
    assert encoder.least_samples == 400 + 15 * 160


def test_special_tokens_come_first(folder: Path, sounds: list[Sound]) -> None:
    plain, special = AudioEncoder(folder, device="cpu"), AudioEncoder(folder, special_tokens=True, device="cpu")
    few, more = plain.encode(sounds[:3]), special.encode(sounds[:3])
    assert (more.lengths - few.lengths).tolist() == [2, 2, 2]
    for one, other in zip(few, more, strict=True):
        torch.testing.assert_close(other[2:], one)
    assert special.max_tokens == 23
    assert not same_encoder(plain.identity, special.identity)


def test_states_do_not_depend_on_neighbours(folder: Path, sounds: list[Sound]) -> None:
    encoder = AudioEncoder(folder, device="cpu")
    many = (sounds * 5)[:250]  # more than one batch
    together, turned = encoder.encode(many), encoder.encode(many[::-1])
    torch.testing.assert_close(turned.select(slice(None, None, -1)).values, together.values, atol=1e-5, rtol=1e-5)


def test_sounds_longer_than_the_window_are_cut_and_counted(folder: Path, sounds: list[Sound]) -> None:
    encoder = AudioEncoder(folder, device="cpu")
    whole, longer = sounds[1], Sound(sounds[1].samples[:FULL], 16_000)
    prepared = encoder.prepare([whole, longer])
    assert (prepared.cut, encoder.truncated) == ({0}, 0)
    first, second = encoder.run(prepared)
    assert encoder.truncated == 1
    torch.testing.assert_close(first, second)


def test_a_model_without_a_head_gives_the_same_states_and_no_logits(
    folder: Path, sounds: list[Sound], tmp_path: Path
) -> None:
    model = transformers.AutoModelForAudioClassification.from_pretrained(folder)
    model.audio_spectrogram_transformer.save_pretrained(tmp_path)
    shutil.copy(folder / "preprocessor_config.json", tmp_path)
    bare, full = AudioEncoder(tmp_path, device="cpu"), AudioEncoder(folder, device="cpu")
    assert (bare.classes, full.classes) == ([], ["hum", "hiss", "click"])
    batch = bare.encode(sounds[:3])
    assert not batch.channels
    torch.testing.assert_close(batch.values, full.encode(sounds[:3]).values)


def test_nothing_and_other_dtypes_can_be_encoded(folder: Path, sounds: list[Sound]) -> None:
    assert len(AudioEncoder(folder, device="cpu").encode([])) == 0
    coarse = AudioEncoder(folder, device="cpu", dtype=torch.bfloat16).encode(sounds[:2])
    exact = AudioEncoder(folder, device="cpu", dtype=torch.float64).encode(sounds[:2])
    assert (coarse.dtype, exact.dtype) == (torch.bfloat16, torch.float64)
    assert (coarse.values - exact.values).abs().mean() < 0.05
    assert exact.values.requires_grad_().requires_grad  # they can be trained on


def test_the_identity_knows_the_spectrogram(folder: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    config = json.loads((other / "preprocessor_config.json").read_text())
    (other / "preprocessor_config.json").write_text(json.dumps(config | {"mean": -5.0}))
    identity = AudioEncoder(folder, device="cpu").identity
    assert {key: identity[key] for key in ("model", "layers", "mode", "max_tokens")} == {
        "model": "tiny-ast",
        "layers": "mix",
        "mode": "input",
        "max_tokens": 21,
    }
    assert same_encoder(identity, AudioEncoder(moved, device="cpu").identity)
    assert not same_encoder(identity, AudioEncoder(other, device="cpu").identity)


@pytest.mark.parametrize(
    ("sound", "message"),
    [
        (Sound(np.ones(9000, np.float32), 8000), "Sound 1 has 8,000 samples per second"),
        (Sound(tone(0.1, 0, 16_000), 16_000), "Sound 1 is too short"),
        (Sound(np.zeros(9000, np.float32), 16_000), "Sound 1 is silent"),
        ("a.wav", "takes sounds, got str at index 1"),
    ],
)
def test_sounds_that_cannot_be_encoded_are_refused(folder: Path, sounds: list[Sound], sound: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        AudioEncoder(folder, device="cpu").encode([sounds[0], sound])


def test_models_that_cannot_be_used_are_refused(folder: Path, tmp_path: Path) -> None:
    def refused(name: str, **options: Any) -> str:
        with pytest.raises(InputError) as error:
            AudioEncoder(tmp_path / name, device="cpu", **options)
        return str(error.value)

    def copy(name: str) -> Path:
        return Path(shutil.copytree(folder, tmp_path / name))

    copy("good")
    assert "Layer 4 of 'good' does not exist" in refused("good", layers=4)
    assert "computes in float16" in refused("good", dtype=torch.int32)
    (copy("unprepared") / "preprocessor_config.json").unlink()
    assert "has no preprocessor_config.json" in refused("unprepared")
    content = (copy("longer") / "preprocessor_config.json").read_text().replace("64", "128")
    (tmp_path / "longer" / "preprocessor_config.json").write_text(content)
    assert "64 frames" in refused("longer")
    weights = copy("cut") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "cannot be loaded" in refused("cut")
    bert = copy("text")
    (bert / "config.json").write_text('{"model_type": "bert"}')
    assert "neither an audio spectrogram transformer nor Whisper" in refused("text")
    assert (is_audio_model(tmp_path / "good"), is_audio_model(bert), is_audio_model(tmp_path)) == (True, False, False)


def test_weights_that_lack_tensors_are_refused(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    lacking = Path(shutil.copytree(folder, tmp_path / "lacking"))
    tensors = load_file(lacking / "model.safetensors")
    del tensors["classifier.dense.weight"]
    save_file(tensors, lacking / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lack 1 tensors.*classifier\.dense\.weight"):
        AudioEncoder(lacking, device="cpu")
