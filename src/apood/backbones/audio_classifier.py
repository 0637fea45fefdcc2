"""A classifier of sounds trained from scratch, saved as an ordinary Hugging Face folder."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from apood.backbones.masked_autoencoder import MaskedAutoencoder, grid_positions
from apood.backbones.sound_batches import Augmentation, SoundBatches, Spectra
from apood.backbones.training_loop import Outcome, Plan, train
from apood.data.record import Sound
from apood.data.sounds import find_sound_problem
from apood.encoders.audio.encoder import SPECIAL_TOKENS
from apood.encoders.audio.spectrogram import LogMel
from apood.encoders.base.pretrained import silence_transformers
from apood.fitting.checkpoint import Checkpoint, run_digest
from apood.support.checks import check_integer, check_number
from apood.support.device import resolve_device
from apood.support.errors import InputError
from apood.support.files import atomic_folder, write_json
from apood.support.version import __version__

__all__ = ["AudioRecipe", "split_sounds", "train_audio_classifier"]

_LONGEST = 1024  # frames of the paper's spectrograms: 10.24 seconds
_COLUMNS = 32
_LEAST_TO_SPLIT, _LEAST_TO_LEARN = 4, 2  # sounds of a class
_TESTED_AT_ONCE = 64

Made = TypeVar("Made")


@dataclass(frozen=True)
class AudioRecipe:
    """What decides the classifier that a training ends in, besides the sounds. The shape is the paper's by default.

    Attributes:
        pretraining: how long and how fast it learns to guess hidden patches; None leaves that out.
        plan: likewise for the classes.
        batch: sounds in a batch.
        hidden_share: of the patches, that pretraining hides.
        augmentation: how much sounds change from one look to the next.
        seconds: the window that the classifier looks at; None for the longest sound, at most 10.24 seconds.
        mel_bins: frequency bands.
        patch: bands, and frames, of a patch.
        width: D, the length of a token.
        blocks: of the transformer.
        heads: of each block.
    """

    pretraining: Plan | None
    plan: Plan
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
        check_integer("The batch", self.batch, 1)
        check_number("The share of hidden patches", self.hidden_share, above=0, below=1)
        if self.seconds is not None:
            check_number("The window, in seconds,", self.seconds, above=0)
        for name in ("patch", "width", "blocks", "heads"):
            check_integer(f"The {name}", getattr(self, name), 1)
        check_integer("The number of mel bins", self.mel_bins, self.patch)
        if self.width % self.heads or self.width % 4:
            raise InputError(
                f"The width must be a multiple of 4 and of the number of heads, {self.heads}, got {self.width}."
            )


def split_sounds(sounds: Sequence[Sound], share: float, seed: int) -> tuple[list[Sound], list[Sound]]:
    """Splits sounds into those to learn from and those to validate on: that share of each class, and at least one."""
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
    """Trains a classifier of labelled `sounds`, saves it to `folder`, and reports how good it is on `validation`.

    First it learns to guess hidden patches of the spectrograms, then the classes. A training whose state is in
    `checkpoint` goes on from there, with the same sounds and recipe. The report is kept as training.json beside the
    weights. `device` is a GPU where there is one.
    """
    classes = _classes(sounds, validation)
    spectrogram = _spectrogram(sounds, recipe)
    _refuse_unusable([*sounds, *validation], spectrogram, recipe)
    learned = Spectra(sounds, [classes.index(str(s.label)) for s in sounds], spectrogram)
    tested = Spectra(validation, [classes.index(str(s.label)) for s in validation], spectrogram)
    mean, std = learned.scale()
    spectrogram = replace(spectrogram, mean=mean, std=std)
    run = run_digest({"recipe": asdict(recipe), "classes": classes, "sounds": learned.digest()})
    place = resolve_device(device)
    model = _new_model(recipe, spectrogram, classes).to(place)
    stages = _train(model, learned, spectrogram, recipe, run, checkpoint)

    right = _right(model, tested, spectrogram)
    report = {
        "accuracy": float(right.double().mean()),
        "accuracy by class": {
            name: float(right[tested.labels == index].double().mean()) for index, name in enumerate(classes)
        },
        "training accuracy": float(_right(model, learned, spectrogram).double().mean()),
        "classes": classes,
        "sounds": len(sounds),
        "validation sounds": len(validation),
        "tokens": model.audio_spectrogram_transformer.embeddings.position_embeddings.shape[1] - SPECIAL_TOKENS,
        "weights": sum(parameter.numel() for parameter in model.parameters()),
        "stages": {name: _summary(outcome) for name, outcome in stages.items()},
    }
    with silence_transformers(), atomic_folder(folder) as temporary:
        model.to("cpu").save_pretrained(temporary)
        spectrogram.save(temporary)
        details = {
            "losses": {name: outcome.losses for name, outcome in stages.items()},
            "recipe": asdict(recipe),
            "versions": {"apood": __version__} | {name: version(name) for name in ("torch", "transformers")},
            "device": torch.cuda.get_device_name(place) if place.type == "cuda" else place.type,
        }
        write_json(temporary / "training.json", report | details)
    return report


def _train(
    model: Any, spectra: Spectra, spectrogram: LogMel, recipe: AudioRecipe, run: str, checkpoint: Checkpoint
) -> dict[str, Outcome]:
    """Each stage keeps its state in a part of the checkpoint, so that the second begins where the first ended."""
    autoencoder = _seeded(
        recipe.plan.seed, lambda: MaskedAutoencoder(model.audio_spectrogram_transformer, recipe.hidden_share)
    )
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

    def guessing(tensors: Mapping[str, Tensor]) -> Tensor:
        return autoencoder(tensors["features"], tensors["order"])  # type: ignore[no-any-return]

    def classifying(tensors: Mapping[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(tensors["features"]).logits.float(), tensors["targets"])

    stages = {}
    if recipe.pretraining is not None:
        stages["pretraining"] = train(
            autoencoder, batches.masked, guessing, recipe.pretraining,
            run=run, checkpoint=checkpoint.part(0), label="pretraining",
        )  # fmt: skip
    stages["training"] = train(
        model, batches.labelled, classifying, recipe.plan, run=run, checkpoint=checkpoint.part(1), label="training"
    )
    return stages


def _classes(sounds: Sequence[Sound], validation: Sequence[Sound]) -> list[str]:
    """The names of the classes in alphabetical order."""
    _refuse_few(sounds, _LEAST_TO_LEARN)
    classes = sorted({str(sound.label) for sound in sounds})
    for sound in validation:
        if sound.label not in classes:
            raise InputError(
                f"There are sounds of the class {sound.label!r} to validate on, but none to learn from: "
                f"the classes are {', '.join(map(repr, classes))}."
            )
    if lacking := sorted(set(classes) - {str(sound.label) for sound in validation}):
        raise InputError(f"There are no sounds of the class {lacking[0]!r} to validate on.")
    return classes


def _refuse_few(sounds: Sequence[Sound], least: int) -> None:
    counts = Counter(sound.label for sound in sounds if sound.label is not None)
    if unlabelled := len(sounds) - counts.total():
        raise InputError(
            f"{unlabelled} of {len(sounds)} sounds have no label: put each file into a folder that is named after "
            "its class, or the names of the classes into the array 'label' of an .npz archive."
        )
    if few := sorted(name for name, count in counts.items() if count < least):
        raise InputError(
            f"A class needs at least {least} sounds, but there are too few of "
            f"{', '.join(f'{name!r} ({counts[name]})' for name in few)}."
        )
    if len(counts) < 2:
        raise InputError(f"A classifier needs at least 2 classes, got {len(counts)}.")


def _spectrogram(sounds: Sequence[Sound], recipe: AudioRecipe) -> LogMel:
    """As many frames as the window has, in columns of patches.

    The paper's spectrograms of 1024 frames have 32 columns side by side. Shorter windows have as many, which overlap:
    so they give as many tokens. Longer ones, where they are asked for, have more columns.
    """
    measure = LogMel(rate=sounds[0].rate, mel_bins=recipe.mel_bins)
    if recipe.seconds is None:
        wanted = min(_LONGEST, max(measure.frames_of(len(sound.samples)) for sound in sounds))
    else:
        wanted = measure.frames_of(round(recipe.seconds * measure.rate))
    stride = _stride(wanted, recipe.patch)
    columns = max(_COLUMNS, math.ceil((wanted - recipe.patch) / stride) + 1)
    return replace(measure, frames=(columns - 1) * stride + recipe.patch)


def _stride(frames: int, patch: int) -> int:
    return min(patch, max(1, math.ceil((frames - patch) / (_COLUMNS - 1))))


def _refuse_unusable(sounds: Sequence[Sound], spectrogram: LogMel, recipe: AudioRecipe) -> None:
    least = spectrogram.samples_of(recipe.patch)
    for index, sound in enumerate(sounds):
        why = find_sound_problem(sound, f"Sound {index}", rate=spectrogram.rate, least_samples=least)
        if why is not None:
            raise InputError(why)


def _new_model(recipe: AudioRecipe, spectrogram: LogMel, classes: Sequence[str]) -> Any:
    from transformers import ASTConfig, ASTForAudioClassification

    config = ASTConfig(
        hidden_size=recipe.width,
        num_hidden_layers=recipe.blocks,
        num_attention_heads=recipe.heads,
        intermediate_size=4 * recipe.width,
        layer_norm_eps=1e-6,
        patch_size=recipe.patch,
        frequency_stride=recipe.patch,
        time_stride=_stride(spectrogram.frames, recipe.patch),
        max_length=spectrogram.frames,
        num_mel_bins=spectrogram.mel_bins,
        id2label=dict(enumerate(classes)),
        label2id={name: index for index, name in enumerate(classes)},
    )

    def made() -> Any:
        model = ASTForAudioClassification(config)
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):  # AST's own start is for a width of 768
                nn.init.xavier_uniform_(module.weight.flatten(1))
        embeddings = model.audio_spectrogram_transformer.embeddings
        rows, columns = embeddings.get_shape(config)
        with torch.no_grad():
            embeddings.position_embeddings[0, SPECIAL_TOKENS:] = grid_positions(rows, columns, config.hidden_size)
            for token in (embeddings.cls_token, embeddings.distillation_token):
                token.normal_(std=0.02)
        return model

    return _seeded(recipe.plan.seed, made)


def _seeded(seed: int, make: Callable[[], Made]) -> Made:
    """What `make` draws follows from the seed, and nobody else's draws change."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the generators of GPUs are left alone, too
        return make()


@torch.no_grad()
def _right(model: Any, spectra: Spectra, spectrogram: LogMel) -> Tensor:
    """Which sounds are classified correctly, from the beginning of each."""
    found = []
    for start in range(0, len(spectra), _TESTED_AT_ONCE):
        features = [spectrogram.padded(own.float()) for own in spectra.features[start : start + _TESTED_AT_ONCE]]
        found.append(model(torch.stack(features).to(model.device)).logits.argmax(1).cpu())
    return torch.cat(found) == spectra.labels


def _summary(outcome: Outcome) -> dict[str, Any]:
    return {"steps": outcome.steps, "minutes": outcome.seconds / 60, "loss": outcome.losses[-1].loss}
