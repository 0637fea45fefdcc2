"""AudioEncoder on Whisper against the encoder of transformers, run on one sound at a time."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from plain_loop import pick_states
from tiny_audio import make_whisper, noise, tone

from apood.data.record import Sound
from apood.encoders.audio.encoder import AudioEncoder
from apood.encoders.base.pretrained import is_audio_model
from apood.encoders.embed import embed_to_store
from apood.encoders.opening import open_encoder, reopen_encoder
from apood.support.errors import InputError
from apood.tokens.identity import same_encoder
from apood.tokens.store import TokenStore

RATE = 16_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_whisper(tmp_path_factory.mktemp("audio") / "tiny-whisper")


@pytest.fixture(scope="module")
def sounds() -> list[Sound]:
    lengths = [RATE, RATE + 1, 2 * RATE, 8000, 320, 321, 8321]
    return [
        Sound(make(2, seed, RATE)[:length], RATE)
        for seed, (make, length) in enumerate(zip([tone, noise] * 4, lengths, strict=False))
    ]


def reference(folder: Path, sound: Sound, layers: int | str) -> torch.Tensor:
    """Return the states of all of the window of a single sound, from the model of transformers."""
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder).get_encoder()
    features = extractor(sound.samples, sampling_rate=RATE, return_tensors="pt")["input_features"]
    with torch.no_grad():
        output = model(features, output_hidden_states=True)
    return pick_states(output.last_hidden_state, output.hidden_states, layers)[0]


@pytest.mark.parametrize("layers", [-1, 0, 2, 3, "mix", "mix:0,3"])
def test_states_are_those_of_the_sound_and_not_of_the_padding(
    folder: Path, sounds: list[Sound], layers: int | str
) -> None:
    encoder = AudioEncoder(folder, layers=layers, device="cpu")
    assert not encoder._reader.needs_all
    batch = encoder.encode(sounds)
    assert batch.lengths.tolist() == [50, 50, 50, 25, 1, 2, 27]
    assert not batch.channels
    for states, sound in zip(batch, sounds, strict=True):
        expected = reference(folder, sound, layers)[: len(states)]
        torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)


def test_a_whisper_folder_is_opened_as_an_audio_encoder(folder: Path, sounds: list[Sound]) -> None:
    assert is_audio_model(folder)
    encoder = open_encoder(folder, device="cpu")
    assert isinstance(encoder, AudioEncoder)
    assert (encoder.rate, encoder.dim, encoder.max_tokens, encoder.least_samples) == (RATE, 16, 50, 320)
    assert encoder.classes == [] and encoder.identity["layers"] == "mix"
    again = reopen_encoder(encoder.identity, folder, device="cpu")
    assert torch.equal(again.encode(sounds).values, encoder.encode(sounds).values)


def test_longer_sounds_are_cut_and_counted(folder: Path, sounds: list[Sound]) -> None:
    encoder = AudioEncoder(folder, device="cpu")
    batch = encoder.encode([sounds[2], Sound(sounds[2].samples[:RATE], RATE)])
    assert encoder.truncated == 1
    torch.testing.assert_close(batch.sequence(0), batch.sequence(1))


def test_states_do_not_depend_on_neighbours(folder: Path, sounds: list[Sound]) -> None:
    encoder = AudioEncoder(folder, layers="mix", device="cpu")
    many = sounds * 30  # more than one batch
    together, turned = encoder.encode(many), encoder.encode(many[::-1])
    torch.testing.assert_close(turned.select(slice(None, None, -1)).values, together.values, atol=1e-5, rtol=1e-5)


def test_a_store_of_sounds_is_made(folder: Path, sounds: list[Sound], tmp_path: Path) -> None:
    from apood.data.record import Record

    encoder = AudioEncoder(folder, layers="mix", device="cpu")
    records = [Record(sound, str(number)) for number, sound in enumerate(sounds)]
    counts = embed_to_store(records, encoder, tmp_path / "store")
    assert (counts.sequences, counts.truncated) == (7, 2)
    store = TokenStore(tmp_path / "store")
    assert store.encoder is not None and same_encoder(store.encoder, encoder.identity)


@pytest.mark.parametrize(
    ("sound", "message"),
    [
        (Sound(tone(1, 0, 8000), 8000), "Sound 0 has 8,000 samples per second"),
        (Sound(tone(1, 0, RATE)[:319], RATE), "Sound 0 is too short"),
    ],
)
def test_sounds_that_cannot_be_encoded_are_refused(folder: Path, sound: Sound, message: str) -> None:
    with pytest.raises(InputError, match=message):
        AudioEncoder(folder, device="cpu").encode([sound])


def test_models_that_cannot_be_used_are_refused(folder: Path, tmp_path: Path) -> None:
    def refused(settings: dict[str, Any] | str | None, **options: Any) -> str:
        other = Path(shutil.copytree(folder, tmp_path / "other", dirs_exist_ok=True))
        path = other / "preprocessor_config.json"
        if settings is None:
            path.unlink()
        else:
            content = json.loads((folder / "preprocessor_config.json").read_text())
            path.write_text(settings if isinstance(settings, str) else json.dumps(content | settings))
        with pytest.raises(InputError) as error:
            AudioEncoder(other, device="cpu", **options)
        return str(error.value)

    assert "has no preprocessor_config.json" in refused(None)
    assert "not a JSON object" in refused("[1]")
    assert "not a JSON object" in refused({"n_fft": "many"})
    assert "n_fft" in refused({"n_fft": 10**12})
    assert "hop_length" in refused({"hop_length": 0})
    assert "takes 100 frames of 20 mel bins" in refused({"chunk_length": 30})
    assert "takes 100 frames of 20 mel bins" in refused({"feature_size": 80})
    assert "has no special tokens" in refused({}, special_tokens=True)
    assert "Layer 4 of 'other' does not exist: allowed are -4 to 3" in refused({}, layers=4)
