"""Log-probabilities of tokens, from the states that predict them and the model's own head, in bounded memory."""

from typing import Any

import torch
from torch import Tensor

from apood.support.errors import InputError

__all__ = ["head_logits", "refuse_unknown_head", "token_logprobs"]

_BLOCK_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 26}


def token_logprobs(model: Any, states: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities `[N]`, in float32, of `tokens [N]`, each under the distribution that a last hidden state gives.

    The logits of all tokens would be far larger than the states, so they exist for a block of tokens at a time.
    """
    head = model.get_output_embeddings()
    block = max(1, _BLOCK_LOGITS.get(states.device.type, 1 << 23) // head.weight.shape[0])
    parts = []
    for some, ids in zip(torch.split(states, block), torch.split(tokens, block), strict=True):
        logits = head_logits(model, some).float()
        parts.append(logits.gather(1, ids[:, None]).squeeze(1) - logits.logsumexp(1))
    return torch.cat(parts) if parts else states.new_empty(0, dtype=torch.float32)


def head_logits(model: Any, states: Tensor) -> Tensor:
    """Logits `[N, vocabulary]` as the model's own forward makes them from its last hidden states `[N, D]`."""
    config = model.config
    if _scales_states(config):
        states = states * config.d_model**-0.5
    logits: Tensor = model.get_output_embeddings()(states)
    if (bias := getattr(model, "final_logits_bias", None)) is not None:
        logits = logits + bias
    if (scale := getattr(config, "logit_scale", None)) is not None:
        logits = logits * scale
    if (divisor := getattr(config, "logits_scaling", None)) is not None:
        logits = logits / divisor
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
        logits = cap * torch.tanh(logits / cap)
    return logits


def _scales_states(config: Any) -> bool:
    """T5 and its kin do so where the head is the embedding matrix; transformers 5 says it in a name of its own."""
    tied = config.model_type in {"t5", "longt5"} and config.tie_word_embeddings
    return bool(getattr(config, "scale_decoder_outputs", tied))


def refuse_unknown_head(model: Any, states: Tensor, logits: Tensor, name: str) -> None:
    """Refuses a model whose own `logits [N, vocabulary]` are not those that `head_logits` makes of its states."""
    made = head_logits(model, states).float()
    # In half precision the two differ by rounding, far less than by a factor or a bias that is missing.
    tolerance = 1e-3 if states.dtype in (torch.float32, torch.float64) else 0.05
    if not torch.allclose(made, logits.float(), rtol=tolerance, atol=tolerance * float(logits.float().abs().max())):
        raise InputError(
            f"The log-probabilities of {name!r} cannot be computed, since {type(model).__name__} turns states into "
            "logits in its own way: switch them off with logprobs=False."
        )
