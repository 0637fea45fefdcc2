"""A tiny random audio spectrogram transformer, saved like a real one, and sounds of two kinds."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from apood.data.record import Sound

RATE = 8000


def tone(seconds: float, seed: int, rate: int = RATE) -> NDArray[np.float32]:
    """Return a few sines around 1 kHz, of random phase and loudness, with a little noise."""
    dice = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    waves = [np.sin(2 * np.pi * (dice.uniform(800, 1200) * time + dice.random())) for _ in range(3)]
    samples = dice.uniform(0.05, 0.3) * np.sum(waves, 0) + 0.01 * dice.standard_normal(len(time))
    return samples.astype(np.float32)


def noise(seconds: float, seed: int, rate: int = RATE) -> NDArray[np.float32]:
    """Return white noise of random loudness."""
    dice = np.random.default_rng(seed)
    return (dice.uniform(0.02, 0.2) * dice.standard_normal(round(seconds * rate))).clip(-1, 1).astype(np.float32)


def labelled_sounds(count: int, seconds: float = 0.8, seed: int = 0) -> list[Sound]:
    """Return `count` tones and `count` noises, alternating."""
    made = {"tone": tone, "noise": noise}
    return [
        Sound(make(seconds, 1000 * seed + index), RATE, label) for index in range(count) for label, make in made.items()
    ]


def make_whisper(folder: Path, seed: int = 0) -> Path:
    """Save a Whisper model of windows of one second, with 3 layers in its encoder; return its folder."""
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=44, d_model=16, encoder_layers=3, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=20, max_source_positions=50,
        max_target_positions=16, init_std=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = transformers.WhisperForConditionalGeneration(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.3 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=20, chunk_length=1).save_pretrained(folder)
    return folder


def make_audio_model(folder: Path, kind: str = "ASTForAudioClassification", seed: int = 0) -> Path:
    """Save a model with 64 frames and overlapping patches of 16, a grid of 3 rows and 7 columns; return its folder."""
    import transformers

    config = transformers.ASTConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, patch_size=16,
        frequency_stride=12, time_stride=8, max_length=64, num_mel_bins=40, initializer_range=0.2,
        id2label={0: "hum", 1: "hiss", 2: "click"}, label2id={"hum": 0, "hiss": 1, "click": 2},
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = getattr(transformers, kind)(config)
        # Fresh models have zero biases, positions and special tokens, and unit norms: they would hide mistakes.
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim == 1 or name.endswith(("embeddings", "token")):
                    parameter.add_(0.3 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    extractor = transformers.ASTFeatureExtractor(
        sampling_rate=16_000, num_mel_bins=40, max_length=64, mean=-6.0, std=3.0
    )
    extractor.save_pretrained(folder)
    return folder
