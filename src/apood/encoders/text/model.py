"""The passes that a text model makes over padded token ids, whatever family it is of."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apood.encoders.base.pretrained import Kind
from apood.encoders.text.padding import Padded

__all__ = ["Hidden", "TextModel"]


@dataclass(frozen=True)
class Hidden:
    """Hidden states of a padded batch, `[sequences, longest, D]` each.

    Attributes:
        states: those of the layer that was asked for.
        last: those that the model's head reads.
        layers: how many hidden states the model gave.
        logits: the class logits `[sequences, classes]` of a classifier.
    """

    states: Tensor
    last: Tensor
    layers: int = 1
    logits: Tensor | None = None

    def at(self, places: Tensor) -> Tensor:
        """The states `[N, D]` at places in the flattened batch."""
        return self.states.flatten(0, 1).index_select(0, places)

    def last_at(self, places: Tensor) -> Tensor:
        """What the head reads at places in the flattened batch."""
        return self.last.flatten(0, 1).index_select(0, places)


class TextModel:
    """A loaded model and the layer that states are taken from.

    Args:
        model: as transformers loads it.
        kind: what it does with text.
        layer: -1 for the last hidden state as the model returns it; any other number picks from `hidden_states`.
    """

    def __init__(self, model: Any, kind: Kind, layer: int = -1) -> None:
        self.model, self.kind, self.layer = model, kind, layer

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        found: torch.device = self.model.device
        return found

    def read(self, prompts: Padded) -> Hidden:
        """States of the prompt itself; of an encoder-decoder model, those of its encoder.

        The padding of a causal model's prompts must be on the right.
        """
        if self.kind == "classifier":
            return self._classify(prompts)
        if self.kind == "causal":
            # Behind the tokens a mask would change nothing, and cost the fastest attention there is.
            return self._hidden(self.model.base_model, input_ids=prompts.ids, use_cache=False)
        return self._hidden(_reader(self.model), input_ids=prompts.ids, attention_mask=prompts.mask)

    def read_with_cache(self, prompts: Padded) -> tuple[Hidden, Any]:
        """States of a causal model's prompts, padded on the left, and their keys and values to go on from, if any."""
        output = self._behind(prompts.ids, prompts.whole_mask, None)
        cache = getattr(output, "past_key_values", None)  # a recurrent model keeps something else
        return self._pick(output.last_hidden_state, output.hidden_states), cache

    def read_on(self, prompts: Padded, cache: Any, ids: Tensor) -> Hidden:
        """States of a causal model that predict each of `ids [sequences, tokens]`, which follow prompts at once.

        `cache` has keys and values of some of the prompts' tokens, and gets those of the rest; None for none of them.
        """
        known = 0 if cache is None else int(cache.get_seq_length())
        # The last token predicts nothing that is asked for.
        whole, ones = torch.cat([prompts.ids, ids[:, :-1]], 1), torch.ones_like(ids[:, :-1])
        output = self._behind(whole[:, known:], torch.cat([prompts.whole_mask, ones], 1), cache)
        hidden, asked = self._pick(output.last_hidden_state, output.hidden_states), ids.shape[1]
        return Hidden(hidden.states[:, -asked:], hidden.last[:, -asked:], hidden.layers)

    def _behind(self, ids: Tensor, mask: Tensor, cache: Any) -> Any:
        """A pass over tokens behind those in the cache; the mask is of both, padding on the left."""
        base = self.model.base_model
        # Models without positions (that bias attention instead) take none.
        takes_positions = "position_ids" in inspect.signature(base.forward).parameters
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return base(
            input_ids=ids,
            attention_mask=mask,
            **({"position_ids": positions} if takes_positions else {}),
            past_key_values=cache,
            output_hidden_states=self.layer != -1,
            use_cache=True,
            return_dict=True,
        )

    def follow(self, encoded: Tensor, prompts: Padded, decoder_ids: Tensor) -> Hidden:
        """States of an encoder-decoder model's decoder, which predict the tokens behind each of `decoder_ids`.

        `encoded` are the encoder's last states. Padding of the decoder is on the right, where it sees none of it.
        """
        return self._hidden(
            self.model.get_decoder(),
            input_ids=decoder_ids,
            encoder_hidden_states=encoded,
            encoder_attention_mask=prompts.mask,
            use_cache=False,
        )

    def _hidden(self, part: Any, **inputs: Any) -> Hidden:
        output = part(**inputs, output_hidden_states=self.layer != -1, return_dict=True)
        return self._pick(output.last_hidden_state, output.hidden_states)

    def _pick(self, last: Tensor, hidden: Any, logits: Tensor | None = None) -> Hidden:
        states = last if self.layer == -1 else hidden[self.layer]
        return Hidden(states, last, 1 if hidden is None else len(hidden), logits)

    def _classify(self, prompts: Padded) -> Hidden:
        """One pass for logits and states: the classifier's output lacks the last state, its base model's has it."""
        seen: list[Any] = []
        hook = self.model.base_model.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
        try:
            output = self.model(
                input_ids=prompts.ids,
                attention_mask=prompts.mask,
                output_hidden_states=self.layer != -1,
                return_dict=True,
            )
        finally:
            hook.remove()
        if "encoder_last_hidden_state" in seen[0]:
            return self._pick(seen[0].encoder_last_hidden_state, seen[0].encoder_hidden_states, output.logits)
        return self._pick(seen[0].last_hidden_state, seen[0].hidden_states, output.logits)


def _reader(model: Any) -> Any:
    """The part of a model without a causal head that reads the prompt."""
    return model.get_encoder() if model.config.is_encoder_decoder else model
