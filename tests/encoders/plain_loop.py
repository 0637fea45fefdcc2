"""The expected results of the encoder, from transformers alone: one text at a time, without padding."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from tiny_models import CAUSAL, ENDS


class Plain(NamedTuple):
    """The states of one text, their ids, and the model's own mean loss over these ids, if any."""

    states: torch.Tensor
    ids: list[int]
    loss: float | None


def pick_states(last: torch.Tensor, hidden: Sequence[torch.Tensor], layers: int | str) -> torch.Tensor:
    """Return the states of one layer, or the mix of several, from the states of all layers."""
    if isinstance(layers, int):
        return last if layers == -1 else hidden[layers]
    everything = [*hidden[:-1], last]
    named = layers.removeprefix("mix").removeprefix(":")
    numbers = map(int, named.split(",")) if named else range(1, len(hidden))
    return torch.stack([torch.nn.functional.normalize(everything[number], dim=-1) for number in numbers]).mean(0)


class PlainLoop:
    """A model of transformers that can generate; its states are those of the default layers, or of others."""

    def __init__(self, folder: Path, layers: int | str | None = None) -> None:
        self.causal = folder.name in CAUSAL
        kind = transformers.AutoModelForCausalLM if self.causal else transformers.AutoModelForSeq2SeqLM
        self.model: Any = kind.from_pretrained(folder)
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self.layers = "mix" if layers is None else layers
        self.encoder_layers = -1 if layers is None else layers

    @torch.no_grad()
    def input(self, text: str) -> Plain:
        ids = self.tokenizer(text)["input_ids"]
        if not self.causal:
            output = self.model.get_encoder()(torch.tensor([ids]), output_hidden_states=True)
            states = pick_states(output.last_hidden_state, output.hidden_states, self.encoder_layers)
            return Plain(states[0], ids, None)
        both = torch.tensor([ids])
        loss = float(self.model(both, labels=both).loss) if len(ids) > 1 else None
        return Plain(self._causal(both)[0], ids, loss)

    @torch.no_grad()
    def output(self, text: str, beams: int, most: int) -> Plain:
        prompt = torch.tensor([self.tokenizer(text)["input_ids"]])
        sequence = self.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), num_beams=beams, max_new_tokens=most, do_sample=False,
            pad_token_id=0,
        )[0].tolist()  # fmt: skip
        new = sequence[prompt.shape[1] :] if self.causal else sequence[1:]
        end = next((place + 1 for place, token in enumerate(new) if token in ENDS), len(new))
        return self.of(prompt, new[:end])

    @torch.no_grad()
    def reference(self, text: str, target: str) -> Plain:
        prompt = torch.tensor([self.tokenizer(text)["input_ids"]])
        return self.of(prompt, self.tokenizer(target, add_special_tokens=not self.causal)["input_ids"])

    @torch.no_grad()
    def of(self, prompt: torch.Tensor, new: list[int]) -> Plain:
        """Return the states that `new` is predicted from."""
        if self.causal:
            both = torch.cat([prompt, torch.tensor([new])], 1)
            labels = both.clone()
            labels[:, : prompt.shape[1]] = -100
            states = self._causal(both)[0, prompt.shape[1] - 1 : -1]
            return Plain(states, new, float(self.model(both, labels=labels).loss))
        start = self.model.config.decoder_start_token_id
        output = self.model(
            prompt, labels=torch.tensor([new]), decoder_input_ids=torch.tensor([[start, *new[:-1]]]),
            output_hidden_states=True,
        )  # fmt: skip
        hidden = output.decoder_hidden_states
        return Plain(pick_states(hidden[-1], hidden, self.layers)[0], new, float(output.loss))

    def _causal(self, ids: torch.Tensor) -> torch.Tensor:
        output = self.model.base_model(ids, output_hidden_states=True)
        return pick_states(output.last_hidden_state, output.hidden_states, self.layers)
