"""The encoder of Whisper: a state per 20 milliseconds of sound."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apood.encoders.audio.spectrogram import PREPROCESSOR_FILE, read_preprocessor
from apood.encoders.base.hidden import LayerReader
from apood.encoders.base.pretrained import Kind, Pretrained, load_config, load_model
from apood.support.errors import InputError

__all__ = ["Whisper"]

_FRAMES_PER_STATE = 2  # the second convolution has this stride
_LONGEST_FRAME = 1 << 16  # samples; a damaged file could ask for any amount of memory


class Whisper:
    """The encoder of a Whisper model: a `SoundModel`. Its decoder is not kept.

    Whisper was trained on windows of 30 seconds, so shorter sounds are padded with silence and the pass is always over
    the whole window, but the states of the silence are left out.

    Args:
        pretrained: the model's files.
        device: the device of the model.
        dtype: the dtype of the model.
    """

    kind: Kind = "encoder"  # of sounds: unlike for texts, the mix of its layers tells more than the last one

    def __init__(self, pretrained: Pretrained, device: torch.device, dtype: torch.dtype) -> None:
        config = load_config(pretrained)
        self._extractor = _make_extractor(pretrained, config)
        import transformers

        whole = load_model(pretrained, transformers.WhisperModel, config, dtype, may_lack=("embed_positions",))
        self.module = whole.get_encoder().to(device).eval()
        self.classes: list[str] = []
        self.depth: int = config.encoder_layers
        self.dim: int = config.d_model
        self.rate: int = self._extractor.sampling_rate
        self.shape = (config.num_mel_bins, self._extractor.nb_max_frames)
        self.max_tokens: int = config.max_source_positions
        self.least_samples: int = _FRAMES_PER_STATE * self._extractor.hop_length  # of one state

    def compute_features(self, samples: NDArray[np.float32]) -> Tensor:
        """Return the log-mel spectrogram `[mel_bins, frames]` of the whole window."""
        made = self._extractor(samples, sampling_rate=self.rate, return_tensors="pt")["input_features"]
        features: Tensor = made[0]
        return features

    def is_cut(self, samples: int) -> bool:
        """Return whether a sound with this number of samples is longer than the window."""
        return bool(samples > self._extractor.n_samples)

    def find_kept(self, samples: int) -> Tensor:
        """Return the indices of the states that see the sound itself."""
        return torch.arange(min(-(-samples // self.least_samples), self.max_tokens))

    def run(self, features: Tensor, reader: LayerReader) -> tuple[Tensor, Tensor | None]:
        """Return the states of the whole window, and no logits."""
        with reader.watch() as finish:
            output = self.module(features, output_hidden_states=reader.needs_all, return_dict=True)
        return finish(output.last_hidden_state, output.hidden_states), None


def _make_extractor(pretrained: Pretrained, config: Any) -> Any:
    """Return the extractor of features of transformers, without the noise that it can add."""
    from transformers import WhisperFeatureExtractor

    known = {"feature_size": 80, "sampling_rate": 16_000, "hop_length": 160, "chunk_length": 30, "n_fft": 400}
    settings = read_preprocessor(
        pretrained.folder, lambda content: {name: int(content.get(name, usual)) for name, usual in known.items()}
    )
    path = pretrained.folder / PREPROCESSOR_FILE
    for name, value in settings.items():
        if not 0 < value <= _LONGEST_FRAME:
            raise InputError(f"{name} in {str(path)!r} must be from 1 to {_LONGEST_FRAME}, got {value}.")
    model = config.max_source_positions * _FRAMES_PER_STATE, config.num_mel_bins
    made = settings["chunk_length"] * settings["sampling_rate"] // settings["hop_length"], settings["feature_size"]
    if model != made:
        raise InputError(
            f"The model {pretrained.name!r} takes {model[0]} frames of {model[1]} mel bins, "
            f"but its {PREPROCESSOR_FILE} makes {made[0]} of {made[1]}."
        )
    return WhisperFeatureExtractor(**settings)
