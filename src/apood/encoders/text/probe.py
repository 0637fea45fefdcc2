"""What only the model itself can tell, from a pass over one token: configurations name it in many ways."""

from dataclasses import dataclass

import torch
from torch import Tensor

from apood.encoders.base.encoder import layer_number
from apood.encoders.base.pretrained import LoadedTextModel
from apood.encoders.text.model import Hidden, TextModel
from apood.encoders.text.padding import Padded
from apood.encoders.text.states import Mode
from apood.encoders.text.token_logprobs import refuse_unknown_head
from apood.support.errors import InputError

__all__ = ["Probe", "probe_model"]


@dataclass(frozen=True)
class Probe:
    """The shape of a model.

    Attributes:
        dim: D of the layer asked for.
        layer: its number, see `layer_number`.
        layers: how many hidden states there are.
        classes: how many logits a classifier gives; 0 for other models.
    """

    dim: int
    layer: int
    layers: int
    classes: int


def probe_model(loaded: LoadedTextModel, name: str, mode: Mode, layer: int, *, with_head: bool) -> Probe:
    """Refuses a model without states for token ids or such a layer; `with_head`, also one whose head is unknown."""
    # Some classifiers look at nothing but an end of sequence.
    end = getattr(loaded.config, "eos_token_id", None) if loaded.kind == "classifier" else 0
    one = torch.full((1, 1), end if isinstance(end, int) else 0, dtype=torch.int64, device=loaded.model.device)
    try:
        with torch.inference_mode():
            layers = _hidden(loaded, mode, 0, one).layers
    except Exception as error:  # a model for other inputs fails in its own way
        raise InputError(
            f"The model {name!r} ({type(loaded.model).__name__}) gives no hidden states for token ids: "
            "allowed are text encoders, causal language models and encoder-decoder models."
        ) from error
    chosen = layer_number(layer, layers, name)
    with torch.inference_mode():
        hidden = _hidden(loaded, mode, chosen, one)
        if with_head:
            inputs = {"input_ids": one} if loaded.kind == "causal" else {"input_ids": one, "decoder_input_ids": one}
            logits = loaded.model(**inputs, return_dict=True).logits
            refuse_unknown_head(loaded.model, hidden.last.flatten(0, 1), logits.flatten(0, 1), name)
    classes = 0 if hidden.logits is None else hidden.logits.shape[-1]
    return Probe(hidden.states.shape[-1], chosen, layers, classes)


def _hidden(loaded: LoadedTextModel, mode: Mode, layer: int, one: Tensor) -> Hidden:
    model, padded = TextModel(loaded.model, loaded.kind, layer), Padded(one, None, torch.ones(1, dtype=torch.int64))
    if mode == "input" or loaded.kind == "causal":
        return model.read(padded)
    return model.follow(TextModel(loaded.model, loaded.kind).read(padded).last, padded, one)
