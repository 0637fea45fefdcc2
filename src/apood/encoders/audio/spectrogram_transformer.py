"""The audio spectrogram transformer (AST): a state per patch of a log-mel spectrogram."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apood.encoders.audio.spectrogram import PREPROCESSOR_FILE, LogMel
from apood.encoders.base.hidden import LayerReader
from apood.encoders.base.pretrained import Kind, Pretrained, load_config, load_model
from apood.support.errors import InputError

__all__ = ["SPECIAL_TOKENS", "SpectrogramTransformer"]

SPECIAL_TOKENS = 2
"""The number of tokens that AST adds before the patches: the class token and the distillation token."""


class SpectrogramTransformer:
    """An audio spectrogram transformer, with its classifier if it has one: a `SoundModel`.

    States are ordered by row of patches, low frequencies first, and within a row by time.

    Args:
        pretrained: the model's files.
        device: the device of the model.
        dtype: the dtype of the model.
        special_tokens: whether to keep the class token and the distillation token, before the patches.
    """

    def __init__(
        self, pretrained: Pretrained, device: torch.device, dtype: torch.dtype, *, special_tokens: bool
    ) -> None:
        self._spectrogram = LogMel.load(pretrained.folder)
        loaded = _load(pretrained, dtype).to(device).eval()
        config = loaded.config
        self.shape = (self._spectrogram.frames, self._spectrogram.mel_bins)
        if self.shape != (wanted := (config.max_length, config.num_mel_bins)):
            raise InputError(
                f"The model {pretrained.name!r} takes {wanted[0]} frames of {wanted[1]} mel bins, "
                f"but its {PREPROCESSOR_FILE} makes {self.shape[0]} of {self.shape[1]}."
            )
        self.module = getattr(loaded, "audio_spectrogram_transformer", loaded)
        self._head = getattr(loaded, "classifier", None)
        self.classes = [] if self._head is None else [config.id2label[i] for i in range(config.num_labels)]
        self.kind: Kind = "encoder" if self._head is None else "classifier"
        self.depth: int = config.num_hidden_layers
        self.dim: int = config.hidden_size
        self.rate = self._spectrogram.rate
        self._stride: int = config.time_stride
        self._rows = (config.num_mel_bins - config.patch_size) // config.frequency_stride + 1
        self._columns = (config.max_length - config.patch_size) // config.time_stride + 1
        self._first = 0 if special_tokens else SPECIAL_TOKENS
        self.max_tokens = self._rows * self._columns + SPECIAL_TOKENS - self._first
        self.least_samples = self._spectrogram.count_samples(config.patch_size)  # a sound must fill a patch

    def compute_features(self, samples: NDArray[np.float32]) -> Tensor:
        """Return the spectrogram of a sound `[frames, mel_bins]`."""
        window = self._spectrogram.count_samples(self._spectrogram.frames)
        return self._spectrogram.pad(self._spectrogram.compute(samples[:window]))

    def is_cut(self, samples: int) -> bool:
        """Return whether a sound with this number of samples has more frames than the model takes."""
        return self._spectrogram.count_frames(samples) > self._spectrogram.frames

    def find_kept(self, samples: int) -> Tensor:
        """Return the indices of the states that are kept: patches of sound, and perhaps special tokens."""
        frames = min(self._spectrogram.count_frames(samples), self._spectrogram.frames)
        columns = min(self._columns, 1 + (frames - 1) // self._stride)
        patches = torch.arange(self._rows * self._columns).view(self._rows, self._columns)[:, :columns].flatten()
        return torch.cat([torch.arange(self._first, SPECIAL_TOKENS), patches + SPECIAL_TOKENS])

    def run(self, features: Tensor, reader: LayerReader) -> tuple[Tensor, Tensor | None]:
        """Return the states of all patches, and the logits of a classifier."""
        with reader.watch() as finish:
            output = self.module(features, output_hidden_states=reader.needs_all, return_dict=True)
        states = finish(output.last_hidden_state, output.hidden_states)
        return states, None if self._head is None else self._head(output.pooler_output)


def _load(pretrained: Pretrained, dtype: torch.dtype) -> Any:
    """Return the model, with its classifier if it has one."""
    config = load_config(pretrained)
    import transformers

    classifies = (config.architectures or [""])[0] == "ASTForAudioClassification"
    kind = transformers.ASTForAudioClassification if classifies else transformers.ASTModel
    return load_model(pretrained, kind, config, dtype)
