"""How much a batch may hold where a model generates: what fits into memory, since more at once costs a step no more."""

from typing import Any, NamedTuple

import torch

__all__ = ["Budget", "generation_budget"]

_CPU_BYTES = 1 << 30
_ACTIVATIONS = 24  # numbers of the size of a state that a pass needs at once for each token
_LOGIT_BYTES = 24  # for each token of the vocabulary, while one of them is chosen


class Budget(NamedTuple):
    """`tokens` a batch, padding included, where every sequence counts as so many `more` tokens than it has."""

    tokens: int
    more: int


def generation_budget(model: Any, outputs: int, new_tokens: int) -> Budget:
    """For a model that generates so many outputs at once for each prompt, of at most so many tokens each.

    Sizes come from the model's configuration, so they are estimates; half of a GPU's free memory is taken as given.
    """
    config, item = model.config.get_text_config(), model.dtype.itemsize
    dim = _number(config, "hidden_size", 4096)
    layers = max(_number(config, name, 0) for name in ("decoder_layers", "num_decoder_layers", "num_hidden_layers"))
    heads = _number(config, "num_attention_heads", 1)
    shared = _number(config, "num_key_value_heads", heads) / heads
    cache = int(2 * max(layers, 1) * dim * shared * item)
    # The keys and values of a prompt are kept beside those of its outputs.
    token = _ACTIVATIONS * dim * item + (outputs + 1) * cache
    output = new_tokens * cache + _LOGIT_BYTES * _number(config, "vocab_size", 1 << 15)
    return Budget(max(1, _memory(model.device) // token), outputs * output // token)


def _memory(device: torch.device) -> int:
    if device.type != "cuda":
        return _CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return 1 << (free // 2).bit_length() - 1  # a power of two, so that batches are the same from run to run


def _number(config: Any, name: str, otherwise: int) -> int:
    found = getattr(config, name, None)
    return found if isinstance(found, int) and found > 0 else otherwise
