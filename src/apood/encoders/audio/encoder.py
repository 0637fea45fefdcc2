"""The audio encoder: from sounds to the patch states of a frozen audio spectrogram transformer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from apood.data.record import Sound
from apood.data.sounds import find_sound_problem
from apood.encoders.audio.spectrogram import PREPROCESSOR_FILE, LogMel
from apood.encoders.base.pretrained import (
    AUDIO_MODEL_TYPE,
    Pretrained,
    check_dtype,
    find_pretrained,
    is_audio_model,
    load_config,
    load_model,
    resolve_layer,
)
from apood.support.device import resolve_device
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.identity import EncoderIdentity

__all__ = ["SPECIAL_TOKENS", "AudioEncoder", "Spectrograms"]

SPECIAL_TOKENS = 2
"""The number of tokens that AST adds before the patches: the class token and the distillation token."""

_CPU_BATCH_TOKENS = 4096
_GPU_BATCH_TOKENS = 65536


class Spectrograms(NamedTuple):
    """Sounds as the model takes them.

    Attributes:
        features: log-mel values, `[sounds, frames, mel_bins]`.
        frames: the number of frames per sound that are not padding.
        cut: the number of sounds that were longer than the model's window.
    """

    features: Tensor
    frames: list[int]
    cut: int


class AudioEncoder:
    """An encoder of sounds: the patch states of one hidden layer of an audio spectrogram transformer (AST).

    A sound becomes a log-mel spectrogram, the spectrogram a grid of patches, and each patch a token. Tokens are ordered
    by row, low frequencies first, and within a row by time. Patches of padding are left out, so a sound that is
    shorter than the model's window has fewer tokens. States do not depend on the other sounds of a call.

    A classifier also gives its logits, in the channel `logits`, one row per sound, from the same pass.

    Args:
        model: a folder with config.json, safetensors weights and preprocessor_config.json, or a hub id (`owner/name`
            or `owner/name@revision`).
        layer: -1 for the last hidden state, after the final norm. Any other number picks from the model's
            `hidden_states`, where 0 is the embedding layer and the highest number is the last layer before the norm.
        special_tokens: whether to add the class token and the distillation token, before the patches.
        device: the device of the model; by default a GPU if there is one. States are always returned on the CPU.
        dtype: the dtype of the computation and of the states; float32 by default.

    Attributes:
        classes: the names of the classes, in the order of the logits; empty if the model is not a classifier.
        device: the device of the model.
        dim: D, the length of a token.
        identity: the settings that another encoder must share to give the same tokens.
        least_samples: the smallest number of samples of a sound, which must fill a patch.
        max_tokens: the number of tokens of a sound that fills the model's window.
        rate: the number of samples per second that sounds must have.
        truncated: the number of sounds so far that were cut because they were longer than the window.

    Examples:
        The folder holds an audio spectrogram transformer.

        >>> import numpy as np
        >>> from apood.data.record import Sound
        >>> encoder = AudioEncoder(folder)
        >>> noise = np.random.default_rng(0).normal(scale=0.1, size=encoder.rate).astype(np.float32)
        >>> batch = encoder.encode([Sound(noise, encoder.rate)])
        >>> len(batch), batch.dim == encoder.dim
        (1, True)
    """

    def __init__(
        self,
        model: str | Path | Pretrained,
        *,
        layer: int = -1,
        special_tokens: bool = False,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._dtype = dtype or torch.float32
        check_dtype(self._dtype)
        self.device = resolve_device(device)
        pretrained = find_pretrained(model)
        self._spectrogram = LogMel.load(pretrained.folder)
        loaded = _load_model(pretrained, self._dtype).to(self.device).eval()
        config = loaded.config
        self._check_shape(pretrained, config)
        self._model = getattr(loaded, "audio_spectrogram_transformer", loaded)
        self._head = getattr(loaded, "classifier", None)
        self.classes = [] if self._head is None else [config.id2label[i] for i in range(config.num_labels)]
        self.dim: int = config.hidden_size
        self.rate = self._spectrogram.rate
        self.truncated = 0
        self._layer = resolve_layer(layer, config.num_hidden_layers + 1, pretrained.name)
        self._patch, self._stride = config.patch_size, config.time_stride
        self._rows = (config.num_mel_bins - config.patch_size) // config.frequency_stride + 1
        self._columns = (config.max_length - config.patch_size) // config.time_stride + 1
        self._first = 0 if special_tokens else SPECIAL_TOKENS
        self.max_tokens = self._rows * self._columns + SPECIAL_TOKENS - self._first
        self.least_samples = self._spectrogram.count_samples(self._patch)
        self.identity: EncoderIdentity = {
            **pretrained.identify(self._layer, "input", self.max_tokens, PREPROCESSOR_FILE),
            **({"special_tokens": True} if special_tokens else {}),
        }

    def prepare(self, sounds: Sequence[Sound]) -> Spectrograms:
        """Return the spectrograms of the sounds, on the CPU. Another thread may call it."""
        features = torch.empty(len(sounds), self._spectrogram.frames, self._spectrogram.mel_bins)
        window = self._spectrogram.count_samples(self._spectrogram.frames)
        frames, cut = [], 0
        for index, sound in enumerate(sounds):
            if not isinstance(sound, Sound):
                raise InputError(f"An audio encoder takes sounds, got {type(sound).__name__} at index {index}.")
            why = find_sound_problem(sound, f"Sound {index}", rate=self.rate, least_samples=self.least_samples)
            if why is not None:
                raise InputError(why)
            cut += self._spectrogram.count_frames(len(sound.samples)) > self._spectrogram.frames
            log_mel = self._spectrogram.compute(sound.samples[:window])
            features[index] = self._spectrogram.pad(log_mel)
            frames.append(len(log_mel))
        return Spectrograms(features, frames, cut)

    def run(self, prepared: Spectrograms) -> TokenBatch:
        """Return the states of every sound, in the order given, and the channel `logits` of a classifier."""
        count = len(prepared.frames)
        kept = [self._find_kept(frames) for frames in prepared.frames]
        rows = Ragged.from_lengths(
            torch.empty(sum(map(len, kept)), self.dim, dtype=self._dtype), [len(places) for places in kept]
        )
        # Tensors made in inference mode could not be trained on.
        logits = torch.empty(count, len(self.classes))
        size = max(1, (_CPU_BATCH_TOKENS if self.device.type == "cpu" else _GPU_BATCH_TOKENS) // self.max_tokens)
        with torch.inference_mode():
            for start in range(0, count, size):
                chosen = slice(start, start + size)
                output = self._model(
                    prepared.features[chosen].to(self.device, self._dtype),
                    output_hidden_states=self._layer != -1,
                    return_dict=True,
                )
                states = output.last_hidden_state if self._layer == -1 else output.hidden_states[self._layer]
                for index, own in enumerate(states.cpu(), start):
                    rows.sequence(index).copy_(own[kept[index]])
                if self._head is not None:
                    logits[chosen] = self._head(output.pooler_output).float().cpu()
        self.truncated += prepared.cut
        channels = {"logits": Ragged.from_lengths(logits, [1] * count)} if self._head is not None else {}
        return TokenBatch(rows.values, rows.offsets, channels, self.identity)

    def encode(self, sounds: Sequence[Sound]) -> TokenBatch:
        """Return the states and channels of every sound, in the order given."""
        return self.run(self.prepare(sounds))

    def _find_kept(self, frames: int) -> Tensor:
        """Return the indices of the model's tokens that are kept: patches of sound, and perhaps special tokens."""
        columns = min(self._columns, 1 + (frames - 1) // self._stride)
        patches = torch.arange(self._rows * self._columns).view(self._rows, self._columns)[:, :columns].flatten()
        return torch.cat([torch.arange(self._first, SPECIAL_TOKENS), patches + SPECIAL_TOKENS])

    def _check_shape(self, pretrained: Pretrained, config: Any) -> None:
        model, features = (
            (config.max_length, config.num_mel_bins),
            (self._spectrogram.frames, self._spectrogram.mel_bins),
        )
        if model != features:
            raise InputError(
                f"The model {pretrained.name!r} takes {model[0]} frames of {model[1]} mel bins, "
                f"but its {PREPROCESSOR_FILE} makes {features[0]} of {features[1]}."
            )


def _load_model(pretrained: Pretrained, dtype: torch.dtype) -> Any:
    """Return the model, with its classifier if it has one."""
    if not is_audio_model(pretrained.folder):
        raise InputError(
            f"The model {pretrained.name!r} is not an audio spectrogram transformer: its config.json must have the "
            f"model_type {AUDIO_MODEL_TYPE!r}."
        )
    config = load_config(pretrained)
    import transformers

    classifies = (config.architectures or [""])[0] == "ASTForAudioClassification"
    kind = transformers.ASTForAudioClassification if classifies else transformers.ASTModel
    return load_model(pretrained, kind, config, dtype)
