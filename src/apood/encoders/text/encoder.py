"""From texts to the token states of a frozen transformer, and what else one pass over the texts can tell."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from apood.data.record import Pair
from apood.encoders.base.encoder import check_dtype, choose_dtype
from apood.encoders.base.pretrained import GENERATING, Pretrained, find_pretrained, load_text_model, load_tokenizer
from apood.encoders.text.batching import Budget, RowCollector, batch_by_length, choose_batch_tokens, generation_budget
from apood.encoders.text.generation import Generator
from apood.encoders.text.model import Mode, probe_model
from apood.encoders.text.states import Rows, TextPass
from apood.encoders.text.tokenising import Tokeniser
from apood.support.checks import check_choice, check_integer
from apood.support.device import resolve_device
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch, encode_texts
from apood.tokens.identity import SAMPLING, EncoderIdentity

__all__ = ["PreparedTexts", "TextEncoder", "find_generation_files"]

_BATCH_STATE_BYTES = 1 << 30
_RUN_STATE_BYTES = 1 << 30  # of a GPU's states in pinned memory


@dataclass(frozen=True)
class PreparedTexts:
    """Texts and their token ids; in mode `reference`, the targets and theirs too; and which items were shortened."""

    texts: list[str]
    sources: Ragged
    target_texts: list[str]
    targets: Ragged | None
    shortened: frozenset[int]

    @property
    def cut(self) -> int:
        """How many items were cut at a limit."""
        return len(self.shortened)

    def part(self, start: int, stop: int) -> "PreparedTexts":
        """Some of them."""
        some = slice(start, stop)
        targets = None if self.targets is None else self.targets.select(some)
        shortened = frozenset(index - start for index in self.shortened if start <= index < stop)
        return PreparedTexts(self.texts[some], self.sources.select(some), self.target_texts[some], targets, shortened)


class TextEncoder:
    """Token states of one hidden layer of a Hugging Face model, for texts.

    In mode `input` the states are those of the text itself: of an encoder (BERT, RoBERTa, a sentence-transformers
    folder), a classifier, a causal language model (Llama, GPT-NeoX, GPT-2, OPT) or the encoder of an encoder-decoder
    model (T5, BART, Marian, Pegasus). A sequence has one token for each id that the model's tokenizer gives for the
    text, the special tokens that it adds by itself among them. In mode `output` they are those of what a causal or an
    encoder-decoder model generates for the text, in mode `reference` those of a target that is given beside it: one
    for each token, the state that the model predicts this token from, up to the end-of-sequence token, which has one
    too. Padding never has a state. A text without any token has no states in any mode. States depend neither on
    padding nor on the other texts of a call.

    Channels: `input_ids`, the tokens that the states belong to; `text`, and in modes `output` and `reference`
    `output_text`; `token_logprobs`, log p of each generated or target token, in mode `input` of a causal model that of
    each token but the first; `sample_logprobs`; of a classifier `logits`.

    Args:
        model: a folder with config.json, safetensors weights and tokenizer files, or a hub id (`owner/name`
            or `owner/name@revision`).
        mode: `input`, `output` or `reference`; the items of `reference` are `Pair(source, target)`.
        layer: -1 for the last hidden state as the model returns it (after the final norm where it has one);
            any other number picks from the `hidden_states` of the encoder, decoder or causal model, where 0 is
            the embedding layer.
        max_tokens: longer texts are cut at their end; the model's own limit holds where it is smaller.
        max_new_tokens: where an output ends at the latest, and a target is cut.
        beams: 1 for greedy search; the model's other generation settings hold, only it never samples its output.
        samples: how many outputs to draw from the model's own distribution, for the channel `sample_logprobs`.
        seed: of the samples; those of a text depend on nothing else.
        template: a text with `{text}` where the input goes, like an instruction.
        special_tokens: false leaves the states of special tokens out, and their ids; log-probabilities are of all.
        logprobs: false leaves out `token_logprobs`, which cost a product with the vocabulary; true refuses a model
            that has none; by default they are there where the model can.
        device: where the model runs; a GPU if there is one by default. States always come back on the CPU, from a GPU
            mostly in pinned memory.
        dtype: the dtype that the model computes in and that the states have; float32 on a CPU and bfloat16 on a GPU
            by default.

    Attributes:
        dim: D, the length of a token.
        max_tokens: the limit in force.
        truncated: how many texts were cut by this encoder so far, or had their target cut.
    """

    def __init__(
        self,
        model: str | Path | Pretrained,
        *,
        mode: Mode = "input",
        layer: int = -1,
        max_tokens: int = 512,
        max_new_tokens: int = 128,
        beams: int = 1,
        samples: int = 0,
        seed: int = 0,
        template: str | None = None,
        special_tokens: bool = True,
        logprobs: bool | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_choice("mode", mode, get_args(Mode))
        check_integer("max_tokens", max_tokens, 1)
        check_integer("max_new_tokens", max_new_tokens, 1)
        check_integer("beams", beams, 1)
        check_integer("samples", samples, 0)
        check_integer("seed", seed, 0)
        if beams > 1 and mode != "output":
            raise InputError(f"Beams are for what a model generates, in mode output, got {beams} in mode {mode}.")
        self.device, self.mode, self.truncated = resolve_device(device), mode, 0
        self._dtype = choose_dtype(self.device) if dtype is None else dtype
        check_dtype(self._dtype)

        pretrained = find_pretrained(model)
        tokenizer = load_tokenizer(pretrained)
        generates = mode != "input" or samples > 0
        loaded = load_text_model(pretrained, self._dtype, generates=generates, logprobs=logprobs is not False)
        if generates and loaded.kind not in GENERATING:
            raise InputError(
                f"The model {pretrained.name!r} ({type(loaded.model).__name__}) generates nothing, so it has no "
                f"{'samples' if mode == 'input' else f'mode {mode}'}: allowed are causal language models and "
                "encoder-decoder models, saved with their heads."
            )
        predicts = mode != "input" or loaded.kind == "causal"
        if logprobs and not predicts:
            raise InputError(
                f"The model {pretrained.name!r} ({type(loaded.model).__name__}) predicts no token of a text, so it has "
                "no logprobs in mode input: allowed are causal language models."
            )
        if generates and loaded.kind == "encoder-decoder" and loaded.config.decoder_start_token_id is None:
            raise InputError(f"The configuration of {pretrained.name!r} lacks decoder_start_token_id to begin with.")
        loaded.model.to(self.device).eval()
        self._kind, self._fill = loaded.kind, loaded.padding_id
        context = loaded.context
        self.max_new_tokens = min(max_new_tokens, context if loaded.kind == "encoder-decoder" else context - 1)
        # What a causal model generates takes positions behind the prompt's.
        room = context - self.max_new_tokens if loaded.kind == "causal" and generates else context
        if room < min(max_tokens, 2):
            raise InputError(
                f"An output of {max_new_tokens} tokens leaves no room for a text among the {context} tokens that "
                f"{pretrained.name!r} has positions for: lower max_new_tokens."
            )
        self.max_tokens = min(max_tokens, room, tokenizer.model_max_length)
        self._tokeniser = Tokeniser(tokenizer, pretrained.name, self.max_tokens, template)

        logprobs = predicts and logprobs is not False
        probe = probe_model(loaded, pretrained.name, mode, layer, with_head=logprobs)
        generator = Generator(loaded.model, self.max_new_tokens, beams, self._fill) if generates else None
        self._pass = TextPass(
            loaded.model,
            loaded.kind,
            mode=mode,
            layer=probe.layer,
            fill=self._fill,
            special_ids=None if special_tokens else self._tokeniser.special_ids,
            logprobs=logprobs,
            generator=generator,
            samples=samples,
            seed=seed,
        )
        self.dim = probe.dim
        self._rows: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "states": ((self.dim,), self._dtype),
            "input_ids": ((), torch.int32),
            **({"token_logprobs": ((), torch.float32)} if logprobs else {}),
            **({"sample_logprobs": ((2,), torch.float32)} if samples else {}),
            **({"logits": ((probe.classes,), torch.float32)} if probe.classes else {}),
        }
        # A model that is asked for its hidden states keeps all of them until the end.
        states = probe.layers if probe.layer != -1 else 1
        most = _BATCH_STATE_BYTES // (states * self.dim * self._dtype.itemsize)
        self._budget = Budget(min(choose_batch_tokens(self.device), most), 0)
        if outputs := max(beams if beams > 1 else 0, samples + (mode == "output")):
            self._budget = generation_budget(loaded.model, outputs, self.max_new_tokens)
        # A classifier on top of a causal model finds the last token of a row by the padding behind it.
        self._most_sequences = 1 if probe.classes and loaded.config.pad_token_id is None else None
        self.identity: EncoderIdentity = {
            **pretrained.identity(probe.layer, mode, self.max_tokens, *find_generation_files(pretrained.folder, mode)),
            **({"max_new_tokens": self.max_new_tokens} if mode != "input" else {}),
            **({"beams": beams} if beams > 1 else {}),
            **({"template": template} if template is not None else {}),
            **({"special_tokens": False} if not special_tokens else {}),
            **(dict(zip(SAMPLING, (samples, self.max_new_tokens, seed), strict=True)) if samples else {}),
        }

    def encode(self, items: Sequence[Any]) -> TokenBatch:
        """The states of every item, in the order given, with their channels."""
        return self.run(self.prepare(items))

    def prepare(self, items: Sequence[Any]) -> PreparedTexts:
        """Token ids of texts, or of pairs in mode `reference`; may run in another thread."""
        if self.mode != "reference":
            _refuse_bad_texts(items)
            sources = self._tokeniser.sources(items)
            return PreparedTexts(list(items), sources.ids, [], None, frozenset(sources.cut))
        _refuse_bad_pairs(items)
        texts, target_texts = [pair.source for pair in items], [pair.target for pair in items]
        sources = self._tokeniser.sources(texts)
        tokenise = self._tokeniser.continuations if self._kind == "causal" else self._tokeniser.targets
        targets = tokenise(target_texts, self.max_new_tokens)
        # Behind a source without tokens there is nothing to predict a target from.
        predicted = sources.ids.lengths > 0
        values = targets.ids.values[predicted.repeat_interleave(targets.ids.lengths)]
        ids = Ragged.from_lengths(values, targets.ids.lengths * predicted)
        return PreparedTexts(texts, sources.ids, target_texts, ids, frozenset({*sources.cut, *targets.cut}))

    def run(self, prepared: PreparedTexts) -> TokenBatch:
        """The states and channels of prepared texts, in their order."""
        parts = [self._run(part) for part in self._parts(prepared)]
        self.truncated += prepared.cut
        return parts[0] if len(parts) == 1 else TokenBatch.concatenate(parts)

    def _parts(self, prepared: PreparedTexts) -> Iterator[PreparedTexts]:
        """On a GPU, as many texts at a time as have states that fit into a bounded part of pinned memory."""
        tokens = self._tokens(prepared)
        lengths = torch.full((len(prepared.texts),), self.max_new_tokens) if tokens is None else tokens.lengths
        portion = lengths.cumsum(0) * self.dim * self._dtype.itemsize // _RUN_STATE_BYTES
        if self.device.type != "cuda" or len(lengths) == 0 or portion[-1] == 0:
            yield prepared
            return
        bounds = [0, *(portion.diff().nonzero().flatten() + 1).tolist(), len(lengths)]
        for start, stop in pairwise(bounds):
            yield prepared.part(start, stop)

    def _tokens(self, prepared: PreparedTexts) -> Ragged | None:
        """The tokens that states are wanted of, where they are known before."""
        return {"input": prepared.sources, "output": None, "reference": prepared.targets}[self.mode]

    def _run(self, prepared: PreparedTexts) -> TokenBatch:
        sources, targets, tokens = prepared.sources, prepared.targets, self._tokens(prepared)
        known = {} if tokens is None else dict.fromkeys(("states", "input_ids"), self._pass.kept(tokens).lengths)
        gathered = {
            name: RowCollector(
                len(sources), row, dtype, torch.device("cpu") if name == "input_ids" else self.device, known.get(name)
            )
            for name, (row, dtype) in self._rows.items()
        }
        with torch.inference_mode():
            todo = [*self.batches(prepared)][::-1]
            while todo:
                chosen = todo.pop()
                found = self._found(sources.select(chosen), None if targets is None else targets.select(chosen))
                if found is None:
                    todo += reversed(chosen.chunk(2))
                    continue
                for name, rows in found.items():
                    gathered[name].add(chosen, rows.lengths, rows.values)
        channels = {name: rows.finish() for name, rows in gathered.items()}
        states = channels.pop("states")
        channels["text"] = encode_texts(prepared.texts)
        if self.mode == "output":
            channels["output_text"] = encode_texts(self._tokeniser.texts(channels["input_ids"]))
        elif self.mode == "reference":
            channels["output_text"] = encode_texts(prepared.target_texts)
        return TokenBatch(states.values, states.offsets, channels, self.identity)

    def _found(self, sources: Ragged, targets: Ragged | None) -> Mapping[str, Rows] | None:
        """What the model gives for a batch; None where it is too large for the memory of the device."""
        try:
            return self._pass(sources, targets)
        except torch.OutOfMemoryError:
            if len(sources) == 1:
                raise
        torch.cuda.empty_cache()
        return None

    def batches(self, prepared: PreparedTexts) -> Iterator[Tensor]:
        """Which texts `run` gives to the model at once, batch by batch."""
        lengths, more = prepared.sources.lengths, self._budget.more
        targets = 0 if prepared.targets is None else prepared.targets.lengths
        return batch_by_length(
            torch.where(lengths > 0, lengths + targets + more, 0), self._budget.tokens, self._most_sequences
        )

    def pieces(self, input_ids: Sequence[int] | Tensor) -> list[str]:
        """What each token reads as; joined, the pieces read as the text.

        A character that is spread over several tokens belongs to the last of them.
        """
        return self._tokeniser.pieces(input_ids)


def find_generation_files(folder: Path, mode: Mode) -> list[str]:
    """The files whose settings decide what is generated, and thus the states of an output."""
    return [name for name in ("generation_config.json",) if mode == "output" and (folder / name).is_file()]


def _refuse_bad_texts(texts: Sequence[Any]) -> None:
    if isinstance(texts, str):
        raise InputError("Texts must be a list of strings, got one string: put it into a list.")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"Texts must be strings, got {type(text).__name__} at index {index}.")


def _refuse_bad_pairs(pairs: Sequence[Any]) -> None:
    for index, pair in enumerate(pairs):
        if not (isinstance(pair, Pair) and isinstance(pair.source, str) and isinstance(pair.target, str)):
            raise InputError(
                f"Mode reference takes Pair(source, target) of two strings, got {pair!r:.80} at index {index}."
            )
