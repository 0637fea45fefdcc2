"""Log-mel spectrograms, as the feature extractor of the Audio Spectrogram Transformer computes them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apood.support.errors import InputError
from apood.support.files import read_json, write_json

__all__ = ["PREPROCESSOR_FILE", "LogMel", "read_preprocessor"]

T = TypeVar("T")

PREPROCESSOR_FILE = "preprocessor_config.json"

_FRAME_SECONDS, _HOP_SECONDS = 0.025, 0.010
_PREEMPHASIS = 0.97
_FLOOR = 2.0**-23  # Kaldi's: the smallest float32 step at 1
_LOWEST_HERTZ = 20


def read_preprocessor(folder: Path, parse: Callable[[Any], T]) -> T:
    """Return what `parse` makes of the settings in a model's preprocessor_config.json; refuse a file without them."""
    path = folder / PREPROCESSOR_FILE
    try:
        return parse(read_json(path))
    except FileNotFoundError as error:
        raise InputError(
            f"The model folder {str(folder)!r} has no {PREPROCESSOR_FILE}, "
            "which defines the spectrograms of its sounds."
        ) from error
    except (OSError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"{str(path)!r} is not a JSON object with the settings of a spectrogram.") from error


@dataclass(frozen=True)
class LogMel:
    """The settings in a model's `preprocessor_config.json`, and the features that they define.

    transformers computes these features with torchaudio if that is installed, and otherwise in numpy, frame by frame.
    Here they are computed in one way, in float64 and over all frames at once, so that tokens do not depend on other
    packages. The results agree with theirs up to rounding. Frames are Kaldi's: 25 ms long and 10 ms apart at any rate.

    Attributes:
        rate: the number of samples per second that sounds must have.
        mel_bins: the number of frequency bands.
        frames: the number of frames that the model takes; shorter sounds are padded, longer ones cut.
        mean: the mean of the log-mel values that the model was trained on.
        std: the standard deviation of these values.
    """

    rate: int = 16_000
    mel_bins: int = 128
    frames: int = 1024
    mean: float = -4.2677393
    std: float = 4.5689974

    @classmethod
    def load(cls, folder: Path) -> "LogMel":
        """Return the settings of the model in `folder`."""

        def parse(config: Any) -> "LogMel":
            normalised = config.get("do_normalize", True)
            return cls(
                rate=int(config.get("sampling_rate", cls.rate)),
                mel_bins=int(config.get("num_mel_bins", cls.mel_bins)),
                frames=int(config.get("max_length", cls.frames)),
                mean=float(config.get("mean", cls.mean)) if normalised else 0.0,
                std=float(config.get("std", cls.std)) if normalised else 0.5,  # features are divided by 2 std
            )

        return read_preprocessor(folder, parse)

    def save(self, folder: Path) -> None:
        """Write the file that `transformers.ASTFeatureExtractor` reads."""
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
        """The number of samples per frame."""
        return int(self.rate * _FRAME_SECONDS)

    @property
    def hop_samples(self) -> int:
        """The number of samples between the starts of two frames."""
        return int(self.rate * _HOP_SECONDS)

    def count_samples(self, frames: int) -> int:
        """Return how many samples fill `frames` frames."""
        return self.frame_samples + (frames - 1) * self.hop_samples

    def count_frames(self, samples: int) -> int:
        """Return how many whole frames `samples` samples contain."""
        return max(0, 1 + (samples - self.frame_samples) // self.hop_samples)

    def compute(self, samples: NDArray[np.float32]) -> Tensor:
        """Return the features `[frames, mel_bins]` of all whole frames in float32, neither cut nor normalised."""
        frames = torch.from_numpy(samples.astype(np.float64)).unfold(0, self.frame_samples, self.hop_samples)
        frames = frames - frames.mean(1, keepdim=True)
        before = torch.cat([frames[:, :1], frames[:, :-1]], 1)
        frames = (frames - _PREEMPHASIS * before) * torch.hann_window(
            self.frame_samples, periodic=False, dtype=torch.float64
        )
        power = torch.fft.rfft(frames, self._fft_samples).abs().square()
        features: Tensor = (power @ self._filters).clamp_min(_FLOOR).log().float()
        return features

    def pad(self, features: Tensor) -> Tensor:
        """Return features `[..., n, mel_bins]` as the model takes them: cut or padded to `frames`, then normalised.

        Zeros are added before the normalisation, because models were trained like this.
        """
        features = features[..., : self.frames, :]
        features = torch.nn.functional.pad(features, (0, 0, 0, self.frames - features.shape[-2]))
        return (features - self.mean) / (2 * self.std)

    @cached_property
    def _fft_samples(self) -> int:
        return 1 << (self.frame_samples - 1).bit_length()

    @cached_property
    def _filters(self) -> Tensor:
        """Triangular filters that are evenly spaced on Kaldi's mel scale, `[frequencies, mel_bins]`."""
        hertz = torch.linspace(0, self.rate / 2, self._fft_samples // 2 + 1, dtype=torch.float64)
        limits = _to_mel(torch.tensor([_LOWEST_HERTZ, self.rate // 2], dtype=torch.float64))
        width = (limits[1] - limits[0]) / (self.mel_bins + 1)
        centres = limits[0] + width * torch.arange(1, self.mel_bins + 1)
        return (1 - (_to_mel(hertz)[:, None] - centres).abs() / width).clamp_min(0)


def _to_mel(hertz: Tensor) -> Tensor:
    return 1127 * torch.log1p(hertz / 700)
