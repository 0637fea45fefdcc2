"""Pretraining of a spectrogram transformer: guessing the hidden patches of a spectrogram from the visible ones."""

from typing import Any

import torch
from torch import Tensor, nn

from apood.encoders.audio.spectrogram_transformer import SPECIAL_TOKENS

__all__ = ["MaskedAutoencoder", "cut_patches", "grid_positions"]


class MaskedAutoencoder(nn.Module):
    """The mean squared error with which a small decoder guesses the normalised hidden patches.

    Huang et al. 2022, Masked Autoencoders that Listen (arXiv 2207.06405), after He et al. 2021 (arXiv 2111.06377):
    the encoder sees only the visible patches; the decoder sees their states and one learnt token in all other places.

    Departure: the decoder is one ordinary block of the encoder's width, since the spectrogram has few patches.

    Args:
        encoder: a `transformers.ASTModel`, which is trained in place.
        hidden_share: share of the patches that the encoder does not see.
    """

    _positions: Tensor

    def __init__(self, encoder: Any, hidden_share: float) -> None:
        super().__init__()
        config = encoder.config
        width = config.hidden_size
        self.encoder = encoder
        self._sizes = (config.patch_size, config.frequency_stride, config.time_stride)
        rows, columns = encoder.embeddings.get_shape(config)
        self.patches = rows * columns
        self._visible = max(1, round(self.patches * (1 - hidden_share)))
        self._blank = nn.Parameter(torch.zeros(width))
        self.register_buffer("_positions", grid_positions(rows, columns, width), persistent=False)
        self._enter = nn.Linear(width, width)
        self._decoder = nn.TransformerEncoderLayer(
            width, config.num_attention_heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self._leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, config.patch_size**2))

    def forward(self, features: Tensor, order: Tensor) -> Tensor:
        """Return the error on `features [n, frames, mel_bins]`; the first in `order [n, patches]` are visible."""
        visible, hidden = order[:, : self._visible], order[:, self._visible :]
        states = self._encode(features, visible)
        blanks = self._blank.expand(*hidden.shape, -1)
        # states and blanks are in the given order: put them back in the places of the patches
        placed = _pick(torch.cat([self._enter(states), blanks], 1), order.argsort(1))
        guesses = self._leave(_pick(self._decoder(placed + self._positions), hidden))
        targets = _pick(cut_patches(features, *self._sizes), hidden)
        targets = nn.functional.layer_norm(targets, targets.shape[-1:], eps=1e-6)
        return nn.functional.mse_loss(guesses.float(), targets)

    def _encode(self, features: Tensor, visible: Tensor) -> Tensor:
        """Return the states of the visible patches. A hook hides the others: AST takes only whole spectrograms."""

        def hide(_module: nn.Module, _arguments: Any, embedded: Tensor) -> Tensor:
            return torch.cat([embedded[:, :SPECIAL_TOKENS], _pick(embedded[:, SPECIAL_TOKENS:], visible)], 1)

        hook = self.encoder.embeddings.register_forward_hook(hide)
        try:
            states: Tensor = self.encoder(features).last_hidden_state
        finally:
            hook.remove()
        return states[:, SPECIAL_TOKENS:]


def cut_patches(features: Tensor, size: int, frequency_stride: int, time_stride: int) -> Tensor:
    """Return the patches `[n, patches, size²]` of features `[n, frames, mel_bins]`, in the order of AST's tokens."""
    grid = features.transpose(1, 2).unfold(1, size, frequency_stride).unfold(2, size, time_stride)
    return grid.flatten(3).flatten(1, 2)


def grid_positions(rows: int, columns: int, width: int) -> Tensor:
    """Return sines and cosines of each patch's row, then of its column: `[rows * columns, width]`."""
    quarter = width // 4
    speeds = 10_000 ** -(torch.arange(quarter) / quarter)
    waves = [torch.arange(count)[:, None] * speeds for count in (rows, columns)]
    row, column = (torch.cat([wave.sin(), wave.cos()], 1) for wave in waves)
    together = torch.cat([row[:, None].expand(-1, columns, -1), column.expand(rows, -1, -1)], 2)
    return together.flatten(0, 1)


def _pick(rows: Tensor, places: Tensor) -> Tensor:
    """Return those of `rows [n, count, D]` that are at `places [n, chosen]`."""
    return rows.gather(1, places[..., None].expand(-1, -1, rows.shape[-1]))
