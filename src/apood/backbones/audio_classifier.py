"""A classifier of sounds trained from scratch, saved as an ordinary Hugging Face folder."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apood.backbones.masked_autoencoder import MaskedAutoencoder, grid_positions
from apood.backbones.sound_batches import Augmentation, SoundBatches, Spectra
from apood.backbones.training_loop import History, Schedule, seed_weights, train, write_report
from apood.data.record import Sound
from apood.data.sounds import find_sound_problem
from apood.encoders.audio.spectrogram import LogMel
from apood.encoders.audio.spectrogram_transformer import SPECIAL_TOKENS
from apood.encoders.base.pretrained import silence_transformers
from apood.fitting.optimise import Checkpoint, run_digest
from apood.support.checks import check_integer, check_number
from apood.support.device import resolve_device
from apood.support.errors import InputError
from apood.support.files import atomic_folder

__all__ = ["AudioRecipe", "split_sounds", "train_audio_classifier"]

_LONGEST = 1024  # frames of the paper's spectrograms: 10.24 seconds
_COLUMNS = 32
_LEAST_TO_SPLIT, _LEAST_TO_LEARN = 4, 2  # sounds per class
_TESTED_AT_ONCE = 64


@dataclass(frozen=True)
class AudioRecipe:
    """Everything besides the sounds that determines the trained classifier. The default shape is the paper's.

    Attributes:
        pretraining: how long and how fast it learns to guess hidden patches; None skips this stage.
        plan: how long and how fast it learns the classes.
        batch: number of sounds per batch.
        hidden_share: share of the patches that pretraining hides.
        augmentation: how much a sound changes from one use to the next.
        seconds: length of the window that the classifier sees; None for the longest sound, at most 10.24 seconds.
        mel_bins: number of frequency bands.
        patch: number of bands and of frames per patch.
        width: D, the length of a token.
        blocks: number of blocks of the transformer.
        heads: number of attention heads per block.
    """

    pretraining: Schedule | None
    plan: Schedule
    batch: int = 32
    hidden_share: float = 0.75
    augmentation: Augmentation = field(default_factory=Augmentation)
    seconds: float | None = None
    mel_bins: int = 128
    patch: int = 32
    width: int = 32
    blocks: int = 3
    heads: int = 4

    def __post_init__(self) -> None:
        for name in ("batch", "patch", "width", "blocks", "heads"):
            check_integer(f"The {name}", getattr(self, name), 1)
        check_number("The share of hidden patches", self.hidden_share, above=0, below=1)
        if self.seconds is not None:
            check_number("The window, in seconds,", self.seconds, above=0)
        check_integer("The number of mel bins", self.mel_bins, self.patch)
        if self.width % self.heads or self.width % 4:
            raise InputError(
                f"The width must be a multiple of 4 and of the number of heads, {self.heads}, got {self.width}."
            )


def split_sounds(sounds: Sequence[Sound], share: float, seed: int) -> tuple[list[Sound], list[Sound]]:
    """Split sounds at random into training and validation sounds: `share` of each class, but at least one."""
    check_number("The share of sounds to validate on", share, above=0, below=1)
    _refuse_few(sounds, _LEAST_TO_SPLIT)
    dice = np.random.default_rng(seed)
    apart: set[int] = set()
    for name in sorted({str(sound.label) for sound in sounds}):
        own = [index for index, sound in enumerate(sounds) if sound.label == name]
        count = min(len(own) - 1, max(1, round(share * len(own))))
        apart.update(dice.permutation(own)[:count].tolist())
    return [sound for i, sound in enumerate(sounds) if i not in apart], [sounds[i] for i in sorted(apart)]


def train_audio_classifier(
    sounds: Sequence[Sound],
    validation: Sequence[Sound],
    folder: Path,
    recipe: AudioRecipe,
    *,
    checkpoint: Checkpoint,
    device: torch.device | str | None = None,
) -> dict[str, Any]:
    """Train a classifier of labelled `sounds`, save it to `folder`, and return its quality on `validation`.

    It first learns to guess hidden patches of the spectrograms, then the classes. If `checkpoint` has the state of a
    training with the same sounds and recipe, it continues from there. The report is kept beside the weights in
    training.json. By default `device` is a GPU if there is one.
    """
    classes = _list_classes(sounds, validation)
    spectrogram = _choose_spectrogram(sounds, recipe)
    least = spectrogram.count_samples(recipe.patch)
    for index, sound in enumerate([*sounds, *validation]):
        if why := find_sound_problem(sound, f"Sound {index}", rate=spectrogram.rate, least_samples=least):
            raise InputError(why)
    learned, tested = (
        Spectra(some, [classes.index(str(sound.label)) for sound in some], spectrogram) for some in (sounds, validation)
    )
    mean, std = learned.scale()
    spectrogram = replace(spectrogram, mean=mean, std=std)
    run = run_digest({"recipe": asdict(recipe), "classes": classes, "sounds": learned.digest()})
    place = resolve_device(device)
    model = _make_model(recipe, spectrogram, classes).to(place)
    stages = _train_stages(model, learned, spectrogram, recipe, run, checkpoint)

    correct = _find_correct(model, tested, spectrogram)
    report = {
        "accuracy": float(correct.double().mean()),
        "accuracy by class": {
            name: float(correct[tested.labels == index].double().mean()) for index, name in enumerate(classes)
        },
        "training accuracy": float(_find_correct(model, learned, spectrogram).double().mean()),
        "classes": classes,
        "sounds": len(sounds),
        "validation sounds": len(validation),
        "tokens": model.audio_spectrogram_transformer.embeddings.position_embeddings.shape[1] - SPECIAL_TOKENS,
        "weights": sum(parameter.numel() for parameter in model.parameters()),
        "stages": {name: history.summarize() for name, history in stages.items()},
    }
    losses = {"losses": {name: history.losses for name, history in stages.items()}}
    with silence_transformers(), atomic_folder(folder) as temporary:
        model.to("cpu").save_pretrained(temporary)
        spectrogram.save(temporary)
        write_report(temporary, report | losses, recipe, place)
    return report


def _train_stages(
    model: Any, spectra: Spectra, spectrogram: LogMel, recipe: AudioRecipe, run: str, checkpoint: Checkpoint
) -> dict[str, History]:
    """Train in two stages. Each keeps its state in its own part of the checkpoint."""
    with seed_weights(recipe.plan.seed):
        autoencoder = MaskedAutoencoder(model.audio_spectrogram_transformer, recipe.hidden_share)
    autoencoder.to(model.device)
    batches = SoundBatches(
        spectra,
        spectrogram,
        patches=autoencoder.patches,
        classes=model.config.num_labels,
        size=recipe.batch,
        seed=recipe.plan.seed,
        augmentation=recipe.augmentation,
    )
    stages = {}
    if recipe.pretraining is not None:
        stages["pretraining"] = train(
            autoencoder,
            batches.make_masked,
            lambda tensors: autoencoder(tensors["features"], tensors["order"]),
            recipe.pretraining,
            run=run,
            checkpoint=checkpoint.part(0),
            label="pretraining",
        )
    stages["training"] = train(
        model,
        batches.make_labelled,
        lambda tensors: nn.functional.cross_entropy(model(tensors["features"]).logits.float(), tensors["targets"]),
        recipe.plan,
        run=run,
        checkpoint=checkpoint.part(1),
        label="training",
    )
    return stages


def _list_classes(sounds: Sequence[Sound], validation: Sequence[Sound]) -> list[str]:
    """Return the names of the classes in alphabetical order."""
    _refuse_few(sounds, _LEAST_TO_LEARN)
    classes, tested = ({str(sound.label) for sound in some} for some in (sounds, validation))
    if unknown := sorted(tested - classes):
        raise InputError(
            f"There are sounds of the class {unknown[0]!r} to validate on, but none to learn from: "
            f"the classes are {', '.join(map(repr, sorted(classes)))}."
        )
    if missing := sorted(classes - tested):
        raise InputError(f"There are no sounds of the class {missing[0]!r} to validate on.")
    return sorted(classes)


def _refuse_few(sounds: Sequence[Sound], least: int) -> None:
    counts = Counter(sound.label for sound in sounds if sound.label is not None)
    if unlabelled := len(sounds) - counts.total():
        raise InputError(
            f"{unlabelled} of {len(sounds)} sounds have no label: put each file into a folder that is named after "
            "its class, or put the names of the classes into the array 'label' of an .npz archive."
        )
    if few := sorted(name for name, count in counts.items() if count < least):
        raise InputError(
            f"A class needs at least {least} sounds, but there are too few of "
            f"{', '.join(f'{name!r} ({counts[name]})' for name in few)}."
        )
    if len(counts) < 2:
        raise InputError(f"A classifier needs at least 2 classes, got {len(counts)}.")


def _choose_spectrogram(sounds: Sequence[Sound], recipe: AudioRecipe) -> LogMel:
    """Return a spectrogram with as many frames as the window has, rounded up to whole columns of patches.

    The paper's spectrograms of 1024 frames have 32 columns side by side. Shorter windows have 32 columns that overlap,
    so they give as many tokens. Longer windows have more columns.
    """
    spectrogram = LogMel(rate=sounds[0].rate, mel_bins=recipe.mel_bins)
    if recipe.seconds is None:
        wanted = min(_LONGEST, max(spectrogram.count_frames(len(sound.samples)) for sound in sounds))
    else:
        wanted = spectrogram.count_frames(round(recipe.seconds * spectrogram.rate))
    stride = _choose_stride(wanted, recipe.patch)
    columns = max(_COLUMNS, math.ceil((wanted - recipe.patch) / stride) + 1)
    return replace(spectrogram, frames=(columns - 1) * stride + recipe.patch)


def _choose_stride(frames: int, patch: int) -> int:
    return min(patch, max(1, math.ceil((frames - patch) / (_COLUMNS - 1))))


def _make_model(recipe: AudioRecipe, spectrogram: LogMel, classes: Sequence[str]) -> Any:
    from transformers import ASTConfig, ASTForAudioClassification

    config = ASTConfig(
        hidden_size=recipe.width,
        num_hidden_layers=recipe.blocks,
        num_attention_heads=recipe.heads,
        intermediate_size=4 * recipe.width,
        layer_norm_eps=1e-6,
        patch_size=recipe.patch,
        frequency_stride=recipe.patch,
        time_stride=_choose_stride(spectrogram.frames, recipe.patch),
        max_length=spectrogram.frames,
        num_mel_bins=spectrogram.mel_bins,
        id2label=dict(enumerate(classes)),
        label2id={name: index for index, name in enumerate(classes)},
    )
    with seed_weights(recipe.plan.seed):
        model = ASTForAudioClassification(config)
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):  # AST's own initial weights are for a width of 768
                nn.init.xavier_uniform_(module.weight.flatten(1))
        embeddings = model.audio_spectrogram_transformer.embeddings
        rows, columns = embeddings.get_shape(config)
        with torch.no_grad():
            embeddings.position_embeddings[0, SPECIAL_TOKENS:] = grid_positions(rows, columns, config.hidden_size)
            for token in (embeddings.cls_token, embeddings.distillation_token):
                token.normal_(std=0.02)
    return model


@torch.no_grad()
def _find_correct(model: Any, spectra: Spectra, spectrogram: LogMel) -> Tensor:
    """Return which sounds are classified correctly by the window at their beginning."""
    found = []
    for start in range(0, len(spectra), _TESTED_AT_ONCE):
        features = [spectrogram.pad(own.float()) for own in spectra.features[start : start + _TESTED_AT_ONCE]]
        found.append(model(torch.stack(features).to(model.device)).logits.argmax(1).cpu())
    return torch.cat(found) == spectra.labels
