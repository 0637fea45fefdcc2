"""Log-mel spectrograms, computed as the feature extractor of the Audio Spectrogram Transformer does."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apood.support.errors import InputError
from apood.support.files import read_json, write_json

__all__ = ["PREPROCESSOR_FILE", "LogMel"]

PREPROCESSOR_FILE = "preprocessor_config.json"

_FRAME_SECONDS, _HOP_SECONDS = 0.025, 0.010
_PREEMPHASIS = 0.97
_FLOOR = 2.0**-23  # Kaldi's: the smallest float32 step at 1
_LOWEST_HERTZ = 20


@dataclass(frozen=True)
class LogMel:
    """What a model's `preprocessor_config.json` says, and the features that follow from it.

    transformers computes these features with torchaudio where that is installed and in numpy otherwise, frame by
    frame. Here there is one way, in float64 and over all frames at once, so that tokens do not depend on what else is
    installed; it agrees with theirs up to rounding. Frames are Kaldi's, 25 ms long and 10 ms apart, at every rate.

    Args:
        rate: samples a second that sounds must have.
        mel_bins: frequency bands.
        frames: frames that the model takes; shorter sounds are padded, longer ones cut.
        mean: of the log-mel values that the model was trained on.
        std: likewise.
    """

    rate: int = 16_000
    mel_bins: int = 128
    frames: int = 1024
    mean: float = -4.2677393
    std: float = 4.5689974

    @classmethod
    def load(cls, folder: Path) -> "LogMel":
        """From the model in `folder`."""
        path = folder / PREPROCESSOR_FILE
        try:
            config = read_json(path)
            normalised = config.get("do_normalize", True)
            return cls(
                rate=int(config.get("sampling_rate", cls.rate)),
                mel_bins=int(config.get("num_mel_bins", cls.mel_bins)),
                frames=int(config.get("max_length", cls.frames)),
                mean=float(config.get("mean", cls.mean)) if normalised else 0.0,
                std=float(config.get("std", cls.std)) if normalised else 0.5,  # it is doubled
            )
        except FileNotFoundError as error:
            raise InputError(
                f"The model folder {str(folder)!r} has no {PREPROCESSOR_FILE}, "
                "which says how its sounds become spectrograms."
            ) from error
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"{str(path)!r} must be a JSON object with the numbers of a spectrogram, and is not."
            ) from error

    def save(self, folder: Path) -> None:
        """Writes what `transformers.ASTFeatureExtractor` reads."""
        content = {
            "feature_extractor_type": "ASTFeatureExtractor",
            "do_normalize": True,
            "feature_size": 1,
            "max_length": self.frames,
            "mean": self.mean,
            "num_mel_bins": self.mel_bins,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": False,
            "sampling_rate": self.rate,
            "std": self.std,
        }
        write_json(folder / PREPROCESSOR_FILE, content)

    @property
    def frame_samples(self) -> int:
        """Samples in a frame."""
        return int(self.rate * _FRAME_SECONDS)

    @property
    def hop_samples(self) -> int:
        """Samples between the beginnings of two frames."""
        return int(self.rate * _HOP_SECONDS)

    def samples_of(self, frames: int) -> int:
        """How many samples it takes to fill so many frames."""
        return self.frame_samples + (frames - 1) * self.hop_samples

    def frames_of(self, samples: int) -> int:
        """How many whole frames are in so many samples."""
        return max(0, 1 + (samples - self.frame_samples) // self.hop_samples)

    def log_mel(self, samples: NDArray[np.float32]) -> Tensor:
        """The features `[frames, mel_bins]` of all whole frames, neither cut nor normalised, in float32."""
        frames = torch.from_numpy(samples.astype(np.float64)).unfold(0, self.frame_samples, self.hop_samples)
        frames = frames - frames.mean(1, keepdim=True)
        before = torch.cat([frames[:, :1], frames[:, :-1]], 1)
        frames = (frames - _PREEMPHASIS * before) * torch.hann_window(
            self.frame_samples, periodic=False, dtype=torch.float64
        )
        power = torch.fft.rfft(frames, self._fft_samples).abs().square()
        features: Tensor = (power @ self._filters).clamp_min(_FLOOR).log().float()
        return features

    def padded(self, features: Tensor) -> Tensor:
        """Features `[..., n, mel_bins]` as the model takes them: cut or filled to `frames`, then normalised.

        They are filled with zeros before they are normalised, because models were trained with that.
        """
        features = features[..., : self.frames, :]
        features = torch.nn.functional.pad(features, (0, 0, 0, self.frames - features.shape[-2]))
        return (features - self.mean) / (2 * self.std)

    @cached_property
    def _fft_samples(self) -> int:
        return 1 << (self.frame_samples - 1).bit_length()

    @cached_property
    def _filters(self) -> Tensor:
        """Triangles that are even on Kaldi's mel scale, `[frequencies, mel_bins]`."""
        hertz = torch.linspace(0, self.rate / 2, self._fft_samples // 2 + 1, dtype=torch.float64)
        limits = _mel(torch.tensor([_LOWEST_HERTZ, self.rate // 2], dtype=torch.float64))
        width = (limits[1] - limits[0]) / (self.mel_bins + 1)
        centres = limits[0] + width * torch.arange(1, self.mel_bins + 1)
        return (1 - (_mel(hertz)[:, None] - centres).abs() / width).clamp_min(0)


def _mel(hertz: Tensor) -> Tensor:
    return 1127 * torch.log1p(hertz / 700)
