"""What a model generates from prompts that it has read, without reading them twice: its output, or samples of it."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from apood.encoders.language.padding import Padded
from apood.encoders.language.text_model import Hidden, TextModel
from apood.encoders.pretrained import quiet
from apood.tokens.batch import Ragged

__all__ = ["Generated", "Generator", "Prompt", "cut_outputs", "read_prompts"]


@dataclass(frozen=True)
class Prompt:
    """Prompts that a model has read: their states, and what it needs to generate from them.

    Attributes:
        hidden: states of the prompts (of the encoder, where there is one), padded as `padded` is.
        padded: their token ids.
        cache: the keys and values of a causal model's prompts, all but their last token.
    """

    hidden: Hidden
    padded: Padded
    cache: Any
    encoder_decoder: bool

    def sequence(self, index: int) -> Tensor:
        """The states of one prompt, `[tokens, D]`."""
        states, length = self.hidden.states[index], int(self.padded.lengths[index])
        return states[:length] if self.encoder_decoder else states[len(states) - length :]

    def select(self, indices: Sequence[int]) -> "Prompt":
        """Some of the prompts, as they were read."""
        if list(indices) == list(range(len(self.padded.lengths))):
            return self
        chosen = torch.tensor(indices, dtype=torch.int64)
        at = chosen.to(self.padded.ids.device)
        hidden = replace(self.hidden, states=self.hidden.states[at], last=self.hidden.last[at])
        mask = None if self.padded.mask is None else self.padded.mask[at]
        cache = copy.deepcopy(self.cache)
        if cache is not None:
            cache.batch_select_indices(at)
        return Prompt(
            hidden, Padded(self.padded.ids[at], mask, self.padded.lengths[chosen]), cache, self.encoder_decoder
        )

    def arguments(self, outputs: int = 1) -> dict[str, Any]:
        """What `model.generate` takes to go on from here, with so many beams or samples for each prompt.

        Generating changes these arguments, not the prompt: ask for them again to generate again.
        """
        # An encoder-decoder model needs the ids, too, where its settings forbid to repeat what is in the prompt.
        arguments: dict[str, Any] = {"input_ids": self.padded.ids, "attention_mask": self.padded.whole_mask}
        if self.encoder_decoder:
            from transformers.modeling_outputs import BaseModelOutput

            arguments["encoder_outputs"] = BaseModelOutput(last_hidden_state=self.hidden.last)
        elif self.cache is not None:
            arguments["past_key_values"] = cache = copy.deepcopy(self.cache)
            if outputs > 1:
                cache.batch_repeat_interleave(outputs)
        return arguments


def read_prompts(text_model: TextModel, tokens: Ragged, fill: int) -> Prompt:
    """Reads prompts of at least one token each, padded with `fill`: the only pass over them that generation needs.

    A causal model's prompts are padded on the left, since what it generates must follow them at once.
    """
    if text_model.kind == "encoder-decoder":
        padded = Padded.of(tokens, text_model.device, fill=fill)
        return Prompt(text_model.read(padded), padded, None, encoder_decoder=True)
    padded = Padded.of(tokens, text_model.device, fill=fill, left=True)
    hidden, cache = text_model.read_with_cache(padded)
    return Prompt(hidden, padded, _without_last(cache), encoder_decoder=False)


def _without_last(cache: Any) -> Any:
    """The cache without the last token, which generation reads again to predict the first new one.

    None where nothing is left, or where a cache cannot forget (a sliding window, a recurrent state): the prompt is
    then read again.
    """
    try:
        if cache.get_seq_length() < 2:
            return None
        cache.crop(-1)
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return None
    return cache


@dataclass(frozen=True)
class Generated:
    """Token ids that a model generated, each sequence up to its end-of-sequence token, which is in.

    Attributes:
        tokens: the ids, on the CPU.
        padded: the same ids `[sequences, longest]` on the device, with anything behind their ends.
        before: the id that each of them followed, in an encoder-decoder model's decoder: its input.
    """

    tokens: Ragged
    padded: Tensor
    before: Tensor


class Generator:
    """Generates with a model that is not used for anything else: its generation settings are put aside.

    Args:
        model: a causal or an encoder-decoder model.
        max_new_tokens: where an output ends at the latest.
        beams: 1 for greedy search.
        fill: the id to pad with.
    """

    def __init__(self, model: Any, max_new_tokens: int, beams: int, fill: int) -> None:
        from transformers import GenerationConfig

        self._model = model
        own = copy.deepcopy(model.generation_config)
        ends = own.eos_token_id if own.eos_token_id is not None else model.config.eos_token_id
        self._ends = torch.tensor([] if ends is None else ends, dtype=torch.int64).flatten()
        tokens = {
            "eos_token_id": ends,
            "pad_token_id": fill,
            "bos_token_id": own.bos_token_id,
            "decoder_start_token_id": own.decoder_start_token_id,
            "max_new_tokens": max_new_tokens,
            "use_cache": True,
        }
        # What is None in the settings of a call is taken from the model's own, which may ask for anything.
        model.generation_config = GenerationConfig(**tokens)
        self._sampling = GenerationConfig(**tokens, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
        unused = dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "typical_p", "max_length", "penalty_alpha"))
        own.update(**tokens, **unused, do_sample=False, num_beams=beams, num_return_sequences=1)
        self._settings, self._beams = own, beams

    def output(self, prompt: Prompt) -> Generated:
        """The model's output for each prompt, by greedy or beam search."""
        return cut_outputs(prompt, self._generate(prompt, self._settings, self._beams), self._ends)

    def samples(self, prompt: Prompt, count: int, seed: int) -> tuple[Generated, Tensor]:
        """So many outputs for each prompt, drawn from the model's own distribution, and the log-probability of each."""
        settings = copy.deepcopy(self._sampling)
        settings.num_return_sequences = count
        watch = _Watch()
        with _seeded(seed, prompt.padded.ids.device):
            sequences = self._generate(prompt, settings, count, logits_processor=[watch])
        generated = cut_outputs(prompt, sequences, self._ends)
        real = torch.arange(generated.padded.shape[1]) < generated.tokens.lengths[:, None]
        logprobs = watch.logprobs(sequences)[:, : generated.padded.shape[1]]
        return generated, (logprobs * real.to(logprobs.device)).sum(1)

    def _generate(self, prompt: Prompt, settings: Any, outputs: int, **options: Any) -> Tensor:
        with quiet():
            sequences: Tensor = self._model.generate(**prompt.arguments(outputs), generation_config=settings, **options)
        return sequences


def cut_outputs(prompt: Prompt, sequences: Tensor, ends: Tensor) -> Generated:
    """What `model.generate` has added to prompts, each output up to the first of the ids `ends`, on the CPU."""
    start = 1 if prompt.encoder_decoder else prompt.padded.ids.shape[1]
    padded = sequences[:, start:]
    ids = padded.cpu()
    ended = torch.isin(ids, ends)
    lengths = torch.where(ended.any(1), ended.int().argmax(1) + 1, ids.shape[1])
    real = torch.arange(ids.shape[1]) < lengths[:, None]
    longest = int(lengths.max())
    tokens = Ragged.from_lengths(ids[real].to(torch.int32), lengths)
    return Generated(tokens, padded[:, :longest], sequences[:, start - 1 : start - 1 + longest])


class _Watch:
    """Stands where scores are processed, changes none, and keeps the log-probability of each token that is chosen."""

    def __init__(self) -> None:
        self._taken: list[Tensor] = []
        self._coming: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._take(input_ids)
        self._coming = scores.float().log_softmax(-1)
        return scores

    def logprobs(self, sequences: Tensor) -> Tensor:
        """Those of all tokens generated, `[sequences, tokens]`."""
        self._take(sequences)
        self._coming = None
        return torch.stack(self._taken, 1)

    def _take(self, input_ids: Tensor) -> None:
        if self._coming is not None:
            self._taken.append(self._coming.gather(1, input_ids[:, -1:]).squeeze(1))


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from a seed, on the CPU and the device; those of the caller go on afterwards as if untouched."""
    cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
