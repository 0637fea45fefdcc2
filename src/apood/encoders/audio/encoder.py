"""The audio encoder: from sounds to the states of a frozen transformer."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from apood.data.record import Sound
from apood.data.sounds import find_sound_problem
from apood.encoders.audio.model import SoundModel
from apood.encoders.audio.spectrogram import PREPROCESSOR_FILE
from apood.encoders.audio.spectrogram_transformer import SpectrogramTransformer
from apood.encoders.audio.whisper import Whisper
from apood.encoders.base.encoder import describe_opened
from apood.encoders.base.hidden import LayerReader, StackSearch
from apood.encoders.base.layers import LayersLike, check_layers, resolve_layers
from apood.encoders.base.pretrained import (
    AUDIO_MODEL_TYPES,
    Pretrained,
    check_dtype,
    find_pretrained,
    get_model_type,
    is_audio_model,
)
from apood.support.device import resolve_device
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.identity import EncoderIdentity

__all__ = ["AudioEncoder", "Features"]

_CPU_BATCH_TOKENS = 4096
_GPU_BATCH_TOKENS = 65536


class Features(NamedTuple):
    """Sounds as the model takes them.

    Attributes:
        values: the features of all sounds, one after the other.
        kept: per sound, the indices of the states that are not padding.
        cut: the indices of the sounds that were longer than the model's window.
    """

    values: Tensor
    kept: list[Tensor]
    cut: frozenset[int]

    @property
    def refused(self) -> dict[int, str]:
        """The sounds that are not encoded: none, because of a long sound the beginning is encoded."""
        return {}


class AudioEncoder:
    """An encoder of sounds: the states of the hidden layers of an audio spectrogram transformer (AST) or of Whisper.

    AST: a sound becomes a log-mel spectrogram, the spectrogram a grid of patches, and each patch a token. Tokens are
    ordered by row, low frequencies first, and within a row by time. A classifier also gives its logits, in the channel
    `logits`, one row per sound, from the same pass.

    Whisper: its encoder gives 50 tokens per second, in the order of time.

    Padding is left out, so a sound that is shorter than the model's window has fewer tokens. States do not depend on
    the other sounds of a call.

    Args:
        model: a folder with config.json, safetensors weights and preprocessor_config.json, or a hub id (`owner/name`
            or `owner/name@revision`).
        layers: the hidden layers that tokens are made of. One number: -1 for the last hidden state, after the final
            norm; any other picks from the model's `hidden_states`, where 0 is the embedding layer and the highest
            number of AST is the last layer before the norm. `mix`: the mean over all layers except the embedding
            layer of the states, each scaled to length 1, the last after the final norm. A list of numbers, or a text
            like `mix:4,5,6`: the mix of these layers. By default `auto`, which is mix.
        special_tokens: whether to add AST's class token and distillation token, before the patches.
        device: the device of the model; by default a GPU if there is one. States are always returned on the CPU.
        dtype: the dtype of the computation and of the states; float32 by default.

    Attributes:
        classes: the names of the classes, in the order of the logits; empty if the model is not a classifier.
        device: the device of the model.
        dim: D, the length of a token.
        identity: the settings that another encoder must share to give the same tokens.
        least_samples: the smallest number of samples of a sound, which must fill a patch of AST, or a state of Whisper.
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
        layers: LayersLike = "auto",
        special_tokens: bool = False,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._dtype = dtype or torch.float32
        check_dtype(self._dtype)
        check_layers(layers)
        self.device = resolve_device(device)
        pretrained = find_pretrained(model)
        self._model = _load_model(pretrained, self.device, self._dtype, special_tokens=special_tokens)
        self._reader = self._find_reader(layers, pretrained.name)
        self.classes, self.dim, self.max_tokens = self._model.classes, self._model.dim, self._model.max_tokens
        self.least_samples, self.rate = self._model.least_samples, self._model.rate
        self.truncated = 0
        self.identity: EncoderIdentity = {
            **pretrained.identify(str(self._reader.layers), "input", self.max_tokens, PREPROCESSOR_FILE),
            **({"special_tokens": True} if special_tokens else {}),
        }

    def __repr__(self) -> str:
        return describe_opened("AudioEncoder", self.identity, self.dim, self.device)

    def _find_reader(self, layers: LayersLike, name: str) -> LayerReader:
        resolved = resolve_layers(layers, self._model.kind, self._model.depth, name)
        if str(resolved) == "-1":
            return LayerReader()
        search = StackSearch(self._model.module)
        features = torch.zeros(1, *self._model.shape, device=self.device, dtype=self._dtype)
        with torch.inference_mode(), search.watch():
            output = self._model.module(features, output_hidden_states=True, return_dict=True)
        return search.find(resolved, output.last_hidden_state, output.hidden_states)

    def prepare(self, sounds: Sequence[Sound]) -> Features:
        """Return the features of the sounds, on the CPU. Another thread may call it."""
        values = torch.empty(len(sounds), *self._model.shape)
        kept, cut = [], set()
        for index, sound in enumerate(sounds):
            if not isinstance(sound, Sound):
                raise InputError(f"An audio encoder takes sounds, got {type(sound).__name__} at index {index}.")
            why = find_sound_problem(sound, f"Sound {index}", rate=self.rate, least_samples=self.least_samples)
            if why is not None:
                raise InputError(why)
            if self._model.is_cut(len(sound.samples)):
                cut.add(index)
            values[index] = self._model.compute_features(sound.samples)
            kept.append(self._model.find_kept(len(sound.samples)))
        return Features(values, kept, frozenset(cut))

    def run(self, prepared: Features) -> TokenBatch:
        """Return the states of every sound, in the order given, and the channel `logits` of a classifier."""
        kept = prepared.kept
        rows = Ragged.from_lengths(
            torch.empty(sum(map(len, kept)), self.dim, dtype=self._dtype), [len(places) for places in kept]
        )
        # Tensors made in inference mode could not be trained on.
        logits = torch.empty(len(kept), len(self.classes))
        size = max(1, (_CPU_BATCH_TOKENS if self.device.type == "cpu" else _GPU_BATCH_TOKENS) // self.max_tokens)
        with torch.inference_mode():
            for start in range(0, len(kept), size):
                chosen = slice(start, start + size)
                features = prepared.values[chosen].to(self.device, self._dtype)
                states, own_logits = self._model.run(features, self._reader)
                for index, own in enumerate(states.cpu(), start):
                    rows.sequence(index).copy_(own[kept[index]])
                if own_logits is not None:
                    logits[chosen] = own_logits.float().cpu()
        self.truncated += len(prepared.cut)
        channels = {"logits": Ragged.from_lengths(logits, [1] * len(kept))} if self.classes else {}
        return TokenBatch(rows.values, rows.offsets, channels, self.identity)

    def encode(self, sounds: Sequence[Sound]) -> TokenBatch:
        """Return the states and channels of every sound, in the order given."""
        return self.run(self.prepare(sounds))


def _load_model(
    pretrained: Pretrained, device: torch.device, dtype: torch.dtype, *, special_tokens: bool
) -> SoundModel:
    if not is_audio_model(pretrained.folder):
        raise InputError(
            f"The model {pretrained.name!r} is neither an audio spectrogram transformer nor Whisper: its config.json "
            f"must have the model_type {' or '.join(map(repr, AUDIO_MODEL_TYPES))}."
        )
    if get_model_type(pretrained.folder) != "whisper":
        return SpectrogramTransformer(pretrained, device, dtype, special_tokens=special_tokens)
    if special_tokens:
        raise InputError(f"The model {pretrained.name!r} is Whisper, whose encoder has no special tokens.")
    return Whisper(pretrained, device, dtype)
