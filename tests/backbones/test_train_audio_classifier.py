"""A classifier of tones and noise, trained in seconds, and what holds for its parts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_audio import RATE, labelled_sounds, noise, tone
from torch import Tensor

from apood.backbones.audio_classifier import AudioRecipe, split_sounds, train_audio_classifier
from apood.backbones.masked_autoencoder import MaskedAutoencoder, cut_patches, grid_positions
from apood.backbones.sound_batches import Augmentation, SoundBatches, Spectra
from apood.backbones.training_loop import Schedule
from apood.data.record import Sound
from apood.encoders.audio.encoder import AudioEncoder
from apood.encoders.audio.spectrogram import LogMel
from apood.fitting.optimise import Checkpoint
from apood.support.errors import ArtefactError, InputError

PRETRAINING, PLAN = Schedule(6, 1e-3, warm_up=0.1), Schedule(40, 3e-3, warm_up=0.1)
TINY = AudioRecipe(PRETRAINING, PLAN, batch=8, mel_bins=32, patch=16, width=16, blocks=2, heads=2)


def trained(folder: Path, recipe: AudioRecipe = TINY, checkpoint: Checkpoint | None = None) -> dict[str, Any]:
    sounds, validation = split_sounds(labelled_sounds(12), 0.25, seed=0)
    kept = checkpoint or Checkpoint(folder.with_suffix(".checkpoint"), every_seconds=3600)
    return train_audio_classifier(sounds, validation, folder, recipe, checkpoint=kept, device="cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "tones"
    report = trained(folder)
    assert report["accuracy"] >= 0.9
    return folder


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_the_result_is_an_ordinary_folder_that_classifies_new_sounds(model: Path) -> None:
    new = labelled_sounds(10, seed=7)
    classifier = transformers.AutoModelForAudioClassification.from_pretrained(model)
    extractor = transformers.AutoFeatureExtractor.from_pretrained(model)
    assert isinstance(classifier, transformers.ASTForAudioClassification)
    encoder = AudioEncoder(model, device="cpu")
    assert encoder.classes == ["noise", "tone"] == list(classifier.config.label2id)
    assert extractor.sampling_rate == RATE
    batch = encoder.encode(new)
    found = batch.channels["logits"].values.argmax(1)
    right = [encoder.classes[index] == sound.label for index, sound in zip(found.tolist(), new, strict=True)]
    assert np.mean(right) >= 0.9
    assert batch.dim == 16
    assert json.loads((model / "training.json").read_text())["classes"] == ["noise", "tone"]


def test_the_report_says_what_was_done(model: Path) -> None:
    report = json.loads((model / "training.json").read_text())
    assert (report["sounds"], report["validation sounds"], report["tokens"]) == (18, 6, 2 * 32)
    assert report["accuracy"] == np.mean(list(report["accuracy by class"].values()))
    assert [report["stages"][name]["steps"] for name in ("pretraining", "training")] == [6, 40]
    assert report["recipe"]["plan"]["learning_rate"] == 3e-3


def test_the_same_seed_gives_the_same_weights(model: Path, tmp_path: Path) -> None:
    trained(tmp_path / "again")
    assert weights(tmp_path / "again") == weights(model)
    trained(tmp_path / "other", replace(TINY, plan=replace(PLAN, seed=1)))
    assert weights(tmp_path / "other") != weights(model)


class Dying(Checkpoint):
    """A checkpoint that interrupts the training after so many saves."""

    def __init__(self, path: Path, saves: list[int]) -> None:
        super().__init__(path, every_seconds=0)
        self.saves = saves

    def part(self, number: int) -> "Dying":
        return Dying(super().part(number).path, self.saves)

    def save_if_due(self, run: str, step: int, tensors: dict[str, Tensor]) -> None:
        super().save_if_due(run, step, tensors)
        self.saves[0] -= 1
        if not self.saves[0]:
            raise KeyboardInterrupt


def test_interrupted_training_ends_as_if_nothing_had_happened(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "tones.checkpoint"
    for saves in (3, 17):  # in the pretraining, then in the training
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "tones", checkpoint=Dying(place, [saves]))
        assert not (tmp_path / "tones").exists()
    trained(tmp_path / "tones", checkpoint=Checkpoint(place))
    assert weights(tmp_path / "tones") == weights(model)
    with pytest.raises(ArtefactError, match="other settings, data or version"):
        trained(tmp_path / "tones", replace(TINY, batch=9), checkpoint=Checkpoint(place))


def test_pretraining_can_be_left_out_and_changes_the_weights(model: Path, tmp_path: Path) -> None:
    report = trained(tmp_path / "alone", replace(TINY, pretraining=None))
    assert list(report["stages"]) == ["training"]
    assert weights(tmp_path / "alone") != weights(model)


@pytest.mark.parametrize(("seconds", "tokens"), [(2.0, 128), (10.24, 128), (20.0, 252)])
def test_the_paper_s_shape_gives_128_tokens_up_to_its_window(tmp_path: Path, seconds: float, tokens: int) -> None:
    once = AudioRecipe(None, Schedule(1, 1e-3), batch=2, seconds=seconds)
    report = trained(tmp_path / "paper", once)
    assert report["tokens"] == tokens
    config = json.loads((tmp_path / "paper" / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]) == (32, 3, 4)
    assert config["patch_size"] == 32
    assert config["max_length"] * 0.01 == pytest.approx(seconds, abs=0.4)


def test_the_window_is_that_of_the_longest_sound(tmp_path: Path) -> None:
    sounds = [*labelled_sounds(4, 0.5), *labelled_sounds(1, 0.9)]
    train_audio_classifier(
        sounds, sounds, tmp_path / "a", replace(TINY, plan=Schedule(1, 1e-3)), checkpoint=Checkpoint(tmp_path / "c")
    )
    frames = json.loads((tmp_path / "a" / "preprocessor_config.json").read_text())["max_length"]
    assert 88 <= frames <= 88 + 31  # 0.9 seconds, rounded up to whole columns


def test_a_split_takes_its_share_of_every_class() -> None:
    sounds = labelled_sounds(20)[:-4]
    for seed in (0, 1):
        learned, tested = split_sounds(sounds, 0.25, seed)
        assert [sum(sound.label == name for sound in tested) for name in ("tone", "noise")] == [4, 4]
        assert {id(sound) for sound in learned} | {id(sound) for sound in tested} == {id(sound) for sound in sounds}
        assert len(learned) + len(tested) == len(sounds)
    assert [id(s) for s in split_sounds(sounds, 0.25, 1)[1]] == [id(s) for s in tested]
    assert [id(s) for s in split_sounds(sounds, 0.25, 0)[1]] != [id(s) for s in tested]


def test_what_cannot_be_learnt_from_is_refused(tmp_path: Path) -> None:
    good = labelled_sounds(5)

    def refused(sounds: list[Sound], validation: list[Sound] = good, **options: Any) -> str:
        with pytest.raises(InputError) as error:
            train_audio_classifier(
                sounds, validation, tmp_path / "m", replace(TINY, **options), checkpoint=Checkpoint(tmp_path / "c")
            )
        assert not (tmp_path / "m").exists()
        return str(error.value)

    rare = Sound(noise(0.8, 0), RATE, "rare")
    assert "at least 2 sounds, but there are too few of 'rare' (1)" in refused([*good, rare])
    with pytest.raises(InputError, match=r"at least 4 sounds, but there are too few of 'rare' \(3\)"):
        split_sounds([*good, rare, rare, rare], 0.2, seed=0)
    assert "1 of 11 sounds have no label" in refused([*good, Sound(noise(0.8, 0), RATE)])
    assert "at least 2 classes, got 1" in refused(good[::2])
    assert "at least 2 classes, got 0" in refused([])
    assert "the class 'rare' to validate on, but none to learn from" in refused(good, [*good, rare])
    assert "no sounds of the class 'noise' to validate on" in refused(good, good[::2])
    assert "has 16,000 samples per second, but 8,000" in refused([*good, Sound(tone(1, 0), 16_000, "tone")])
    assert "is too short" in refused([*good, Sound(tone(0.1, 0), RATE, "tone")])
    for options, message in [
        ({"width": 18}, "multiple of 4 and of the number of heads, 2, got 18"),
        ({"hidden_share": 1.0}, "hidden patches"),
        ({"mel_bins": 8}, "mel bins must be at least 16"),
        ({"seconds": 0}, "window"),
    ]:
        assert message in refused(good, **options)


def ast(**options: Any) -> Any:
    config = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    shape = {"patch_size": 8, "frequency_stride": 8, "time_stride": 8, "max_length": 48, "num_mel_bins": 32}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.ASTModel(transformers.ASTConfig(**config, **shape, **options)).eval()


def test_patches_are_what_the_model_s_tokens_see() -> None:
    model = ast()
    features = torch.randn(2, 48, 32, generator=torch.Generator().manual_seed(0))
    convolution = model.embeddings.patch_embeddings.projection
    by_hand = cut_patches(features, 8, 8, 8) @ convolution.weight.flatten(1).T + convolution.bias
    torch.testing.assert_close(by_hand, model.embeddings.patch_embeddings(features), atol=1e-5, rtol=1e-5)


def test_the_autoencoder_sees_the_visible_patches_alone() -> None:
    autoencoder = MaskedAutoencoder(ast(), hidden_share=0.75)
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(3, 48, 32, generator=generator)
    order = torch.rand(3, 24, generator=generator).argsort(1)
    states = autoencoder._encode(features, order[:, :6])
    assert states.shape == (3, 6, 16)
    blanked = features.clone()
    for sound, places in enumerate(order[:, 6:].tolist()):
        for place in places:
            row, column = divmod(place, 6)
            blanked[sound, 8 * column : 8 * column + 8, 8 * row : 8 * row + 8] = 99.0
    torch.testing.assert_close(autoencoder._encode(blanked, order[:, :6]), states)
    assert autoencoder.encoder(features).last_hidden_state.shape == (3, 26, 16)  # the hook is gone


def test_the_error_of_the_autoencoder_is_that_on_hidden_patches() -> None:
    autoencoder = MaskedAutoencoder(ast(), hidden_share=0.75)
    features = torch.randn(2, 48, 32, generator=torch.Generator().manual_seed(0))
    order = torch.arange(24).expand(2, -1)
    with torch.no_grad():
        for parameter in autoencoder._leave.parameters():
            parameter.zero_()  # it guesses 0 everywhere, and every target has variance 1
    assert float(autoencoder(features, order).detach()) == pytest.approx(1.0, abs=1e-3)
    autoencoder(features, order).backward()
    with torch.no_grad():
        autoencoder._leave[1].bias.fill_(2.0)
    assert float(autoencoder(features, order).detach()) == pytest.approx(5.0, abs=1e-2)


def test_every_place_of_the_grid_has_its_own_position() -> None:
    positions = grid_positions(4, 32, 32)
    assert positions.shape == (128, 32)
    assert float((torch.cdist(positions, positions) + 9 * torch.eye(128)).min()) > 0.1
    torch.testing.assert_close(positions[0, :16], positions[31, :16])  # one row
    torch.testing.assert_close(positions[5, 16:], positions[32 + 5, 16:])  # one column


def batches(sounds: list[Sound], size: int = 4, **augmentation: Any) -> SoundBatches:
    measure = LogMel(rate=RATE, mel_bins=16, frames=60, mean=0.0, std=0.5)
    spectra = Spectra(sounds, [0, 1] * (len(sounds) // 2), measure)
    changes = Augmentation(**{"gain": 0.0, "hidden_bins": 0, "hidden_frames": 0.0, "mixing": 0.0} | augmentation)
    return SoundBatches(spectra, measure, patches=6, classes=2, size=size, seed=0, augmentation=changes)


def test_every_sound_is_seen_once_before_any_is_seen_again() -> None:
    sounds = labelled_sounds(5, 0.3)
    own = batches(sounds)
    seen = torch.cat([own._choose(step) for step in range(5)]).tolist()
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]
    assert batches(sounds, size=99).make_labelled(0).tensors["targets"].shape == (10, 2)


def test_shifts_keep_what_a_sound_consists_of() -> None:
    sounds = labelled_sounds(2, 0.4)
    own = batches(sounds)
    features = own.make_labelled(0).tensors["features"]
    for window, index in zip(features, own._choose(0).tolist(), strict=True):
        whole = own.spectra.features[index].float()
        torch.testing.assert_close(window[: len(whole)].sort(0).values, whole.sort(0).values)
    longer = batches(labelled_sounds(2, 2.0)).make_labelled(0).tensors["features"]
    assert longer.shape == (4, 60, 16)


def test_augmentations_do_what_they_say() -> None:
    sounds = labelled_sounds(4, 0.7)
    plain = batches(sounds).make_labelled(0).tensors
    assert set(plain["targets"].flatten().tolist()) == {0.0, 1.0}
    mixed = batches(sounds, mixing=5.0).make_labelled(0).tensors["targets"]
    torch.testing.assert_close(mixed.sum(1), torch.ones(4))
    assert bool((mixed.max(1).values >= 0.5).all()) and bool(((mixed > 0) & (mixed < 1)).any())
    hidden = batches(sounds, hidden_bins=8).make_labelled(0).tensors["features"]
    blank = (hidden == 0).all(1).sum(1)
    assert 0 < int(blank.max()) <= 8
    louder = batches(sounds, gain=3.0).make_labelled(0).tensors["features"] - plain["features"]
    shifts = louder[:, :40].flatten(1).median(1).values
    assert float(shifts.abs().max()) <= 3.1 and len(set(shifts.tolist())) == 4
