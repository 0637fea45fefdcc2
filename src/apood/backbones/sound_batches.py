"""Spectrograms in memory, and batches of them, slightly changed each time they are seen."""

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
    """How much a spectrogram may change from one look to the next; it also begins at another moment each time.

    Attributes:
        gain: largest change of the log power: 1 is a factor of e, or 4.3 decibels.
        hidden_bins: largest width of a band of frequencies that is blanked out.
        hidden_frames: likewise, of time, as a share of the window.
        mixing: α of the Beta(α, α) that says how much of another sound, and of its class, is mixed in; 0 for none.
    """

    gain: float = 1.0
    hidden_bins: int = 16
    hidden_frames: float = 0.1
    mixing: float = 0.2


class Spectra:
    """The log-mel features of sounds, in float16 (they are of the order of 10, and coarser than its steps)."""

    def __init__(self, sounds: Sequence[Sound], labels: Sequence[int], spectrogram: LogMel) -> None:
        shown = track(sounds, "spectrograms", len(sounds))
        self.features = [spectrogram.log_mel(sound.samples).half() for sound in shown]
        self.labels = torch.tensor(labels)

    def __len__(self) -> int:
        return len(self.features)

    def scale(self) -> tuple[float, float]:
        """Mean and standard deviation of all values."""
        count = sum(features.numel() for features in self.features)
        mean = sum(float(features.double().sum()) for features in self.features) / count
        square = sum(float((features.double() - mean).square().sum()) for features in self.features) / count
        return mean, square**0.5

    def digest(self) -> str:
        """Another one for other sounds or labels."""
        digest = hashlib.sha256(self.labels.numpy().tobytes())
        for features in self.features:
            digest.update(features.numpy().tobytes())
        return digest.hexdigest()


class SoundBatches:
    """The batch of a step, which follows from the seed and the number of the step alone.

    Every sound is seen once before any is seen again.
    """

    def __init__(
        self,
        spectra: Spectra,
        spectrogram: LogMel,
        *,
        patches: int,
        classes: int,
        size: int,
        seed: int,
        augmentation: Augmentation,
    ) -> None:
        self._spectra = spectra
        self._spectrogram = spectrogram
        self._size = min(size, len(spectra))
        self._seed = seed
        self._patches = patches
        self._classes = classes
        self._augmentation = augmentation

    def masked(self, step: int) -> Batch:
        """`features`, and for each the `order` in which its patches are shown."""
        dice = self._dice(0, step)
        features = self._features(step, dice)
        order = dice.random((len(features), self._patches)).argsort(1)
        return Batch({"features": features, "order": torch.from_numpy(order)}, order.size)

    def labelled(self, step: int) -> Batch:
        """`features`, and for each the probabilities of the classes as `targets`."""
        dice = self._dice(1, step)
        features = self._hidden(self._features(step, dice), dice)
        targets = torch.nn.functional.one_hot(self._spectra.labels[self._chosen(step)], self._classes).float()
        if self._augmentation.mixing:
            kept = dice.beta(self._augmentation.mixing, self._augmentation.mixing, len(features))
            share = torch.from_numpy(np.maximum(kept, 1 - kept)).float()
            partner = torch.from_numpy(dice.permutation(len(features)))
            features = _mixed(features, features[partner], share[:, None, None])
            targets = _mixed(targets, targets[partner], share[:, None])
        return Batch({"features": features, "targets": targets}, len(features) * self._patches)

    def _dice(self, purpose: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, purpose, number])

    def _chosen(self, step: int) -> Tensor:
        places = np.arange(step * self._size, (step + 1) * self._size)
        rounds = places // len(self._spectra)
        orders = {number: self._dice(2, number).permutation(len(self._spectra)) for number in np.unique(rounds)}
        return torch.tensor([orders[n][place % len(self._spectra)] for n, place in zip(rounds, places, strict=True)])

    def _features(self, step: int, dice: np.random.Generator) -> Tensor:
        """A window of each sound: cut anywhere out of a longer one, turned round in a shorter one; louder or softer."""
        window = self._spectrogram.frames
        seen = []
        for index in self._chosen(step).tolist():
            whole = self._spectra.features[index].float()
            if len(whole) > window:
                whole = whole[int(dice.integers(len(whole) - window + 1)) :][:window]
            else:
                whole = whole.roll(int(dice.integers(len(whole))), 0)
            seen.append(self._spectrogram.padded(whole + self._augmentation.gain * dice.uniform(-1, 1)))
        return torch.stack(seen)

    def _hidden(self, features: Tensor, dice: np.random.Generator) -> Tensor:
        """One band of frequencies and one of time blanked out in each, with the mean, which is 0."""
        _, frames, bins = features.shape
        widest, longest = min(self._augmentation.hidden_bins, bins), round(self._augmentation.hidden_frames * frames)
        for own in features:
            width, length = dice.integers(widest + 1), dice.integers(longest + 1)
            low, begin = dice.integers(bins - width + 1), dice.integers(frames - length + 1)
            own[:, low : low + width] = 0
            own[begin : begin + length] = 0
        return features


def _mixed(one: Tensor, other: Tensor, share: Tensor) -> Tensor:
    return share * one + (1 - share) * other
