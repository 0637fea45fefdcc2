"""Spectrograms in memory, and batches of them, slightly changed each time they are used."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from apood.backbones.training_loop import Batch
from apood.data.record import Sound
from apood.encoders.audio.spectrogram import LogMel
from apood.support.progress import track

__all__ = ["Augmentation", "SoundBatches", "Spectra"]


@dataclass(frozen=True)
class Augmentation:
    """How much a spectrogram may change from one use to the next. It also begins at another moment each time.

    Attributes:
        gain: largest change of the log power: 1 is a factor of e, or 4.3 decibels.
        hidden_bins: largest width of a frequency band that is blanked out.
        hidden_frames: largest length of a time span that is blanked out, as a share of the window.
        mixing: α of the Beta(α, α) from which the share of another sound, and of its class, is drawn; 0 for none.
    """

    gain: float = 1.0
    hidden_bins: int = 16
    hidden_frames: float = 0.1
    mixing: float = 0.2


class Spectra:
    """The log-mel features of sounds in float16, which is precise enough for values of the order of 10."""

    def __init__(self, sounds: Sequence[Sound], labels: Sequence[int], spectrogram: LogMel) -> None:
        shown = track(sounds, "spectrograms", len(sounds))
        self.features = [spectrogram.compute(sound.samples).half() for sound in shown]
        self.labels = torch.tensor(labels)

    def __len__(self) -> int:
        return len(self.features)

    def scale(self) -> tuple[float, float]:
        """Return the mean and the standard deviation of all values."""
        count = sum(features.numel() for features in self.features)
        mean = sum(float(features.double().sum()) for features in self.features) / count
        square = sum(float((features.double() - mean).square().sum()) for features in self.features) / count
        return mean, square**0.5

    def digest(self) -> str:
        """Return a digest of the sounds and labels."""
        digest = hashlib.sha256(self.labels.numpy().tobytes())
        for features in self.features:
            digest.update(features.numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class SoundBatches:
    """The batch of a step, which depends only on the seed and on the number of the step.

    Every sound is used once before any is used again.

    Attributes:
        spectra: the sounds.
        spectrogram: the window and the scale of the features.
        patches: number of patches per window.
        classes: number of classes.
        size: number of sounds per batch, at most all of them.
        seed: determines everything that is drawn.
        augmentation: how much the sounds change.
    """

    spectra: Spectra
    spectrogram: LogMel
    patches: int
    classes: int
    size: int
    seed: int
    augmentation: Augmentation

    def make_masked(self, step: int) -> Batch:
        """Return `features` and, for each sound, the `order` in which its patches are shown."""
        dice = self._make_dice(0, step)
        features = self._cut_windows(step, dice)
        order = dice.random((len(features), self.patches)).argsort(1)
        return Batch({"features": features, "order": torch.from_numpy(order)}, order.size)

    def make_labelled(self, step: int) -> Batch:
        """Return `features` and, for each sound, the probabilities of the classes as `targets`."""
        dice = self._make_dice(1, step)
        features = self._blank_out(self._cut_windows(step, dice), dice)
        targets = torch.nn.functional.one_hot(self.spectra.labels[self._choose(step)], self.classes).float()
        if self.augmentation.mixing:
            kept = dice.beta(self.augmentation.mixing, self.augmentation.mixing, len(features))
            share = torch.from_numpy(np.maximum(kept, 1 - kept)).float()[:, None]
            partner = torch.from_numpy(dice.permutation(len(features)))
            features = share[..., None] * features + (1 - share[..., None]) * features[partner]
            targets = share * targets + (1 - share) * targets[partner]
        return Batch({"features": features, "targets": targets}, len(features) * self.patches)

    def _make_dice(self, purpose: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, purpose, number])

    def _choose(self, step: int) -> Tensor:
        count = len(self.spectra)
        size = min(self.size, count)
        places = np.arange(step * size, (step + 1) * size)
        orders = {epoch: self._make_dice(2, epoch).permutation(count) for epoch in np.unique(places // count)}
        return torch.tensor([orders[place // count][place % count] for place in places])

    def _cut_windows(self, step: int, dice: np.random.Generator) -> Tensor:
        """Return a window of each sound, cut out of a longer one or rotated in a shorter one, louder or softer."""
        window = self.spectrogram.frames
        windows = []
        for index in self._choose(step).tolist():
            whole = self.spectra.features[index].float()
            if len(whole) > window:
                whole = whole[int(dice.integers(len(whole) - window + 1)) :][:window]
            else:
                whole = whole.roll(int(dice.integers(len(whole))), 0)
            windows.append(self.spectrogram.pad(whole + self.augmentation.gain * dice.uniform(-1, 1)))
        return torch.stack(windows)

    def _blank_out(self, features: Tensor, dice: np.random.Generator) -> Tensor:
        """Set one frequency band and one time span of each window to the mean, which is 0."""
        _, frames, bins = features.shape
        widest, longest = min(self.augmentation.hidden_bins, bins), round(self.augmentation.hidden_frames * frames)
        for own in features:
            width, length = dice.integers(widest + 1), dice.integers(longest + 1)
            low, begin = dice.integers(bins - width + 1), dice.integers(frames - length + 1)
            own[:, low : low + width] = 0
            own[begin : begin + length] = 0
        return features
