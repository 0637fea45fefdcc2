"""The text encoder: from texts to the token states of a frozen transformer, and the channels of the same pass."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from apood.data.record import Pair
from apood.encoders.base.encoder import describe_opened, encode_or_refuse
from apood.encoders.base.layers import LayersLike, check_layers
from apood.encoders.base.pretrained import (
    GENERATING,
    LoadedTextModel,
    Pretrained,
    check_dtype,
    choose_dtype,
    find_pretrained,
    load_text_model,
    load_tokenizer,
)
from apood.encoders.text.generation import Generator
from apood.encoders.text.model import Mode, probe_model
from apood.encoders.text.sentences import TextSentences, embed_sentences, read_sentences
from apood.encoders.text.states import Rows, TextPass
from apood.encoders.text.tokenising import (
    Budget,
    RowCollector,
    Tokeniser,
    batch_by_length,
    choose_batch_tokens,
    estimate_generation_budget,
)
from apood.encoders.text.windows import OnLong
from apood.support.checks import check_choice, check_integer
from apood.support.device import resolve_device
from apood.support.errors import ApoodError, InputError
from apood.tokens.batch import Ragged, TokenBatch, encode_texts, list_run_rows
from apood.tokens.documents import WINDOW
from apood.tokens.identity import SAMPLING, EncoderIdentity

__all__ = ["PreparedTexts", "TextEncoder", "check_texts", "find_generation_files", "repeat_text"]

_BATCH_STATE_BYTES = 1 << 30
_RUN_STATE_BYTES = 1 << 30  # of states in pinned memory, if the model runs on a GPU


@dataclass(frozen=True)
class PreparedTexts:
    """Texts and their token ids.

    Attributes:
        texts: the text of each sequence; in mode `reference`, the source. Further windows of a text have an empty one.
        sources: the token ids of each sequence: a text, or a window of a long one.
        target_texts: the targets of mode `reference`.
        targets: the token ids of the targets.
        cut: the indices of the sequences that were cut at a limit.
        windows: the number of each sequence among the windows of its text; None if long texts have no windows.
        refused: what is wrong with the items that have no sequence, by their indices.
        sentences: the sentences of the texts; None if they are not wanted.
    """

    texts: list[str]
    sources: Ragged
    target_texts: list[str]
    targets: Ragged | None
    cut: frozenset[int]
    windows: Tensor | None = None
    refused: Mapping[int, str] = field(default_factory=dict)
    sentences: TextSentences | None = None

    def slice(self, start: int, stop: int) -> "PreparedTexts":
        """Return the sequences from `start` to `stop`."""
        some = slice(start, stop)
        return PreparedTexts(
            self.texts[some],
            self.sources.select(some),
            self.target_texts[some],
            None if self.targets is None else self.targets.select(some),
            frozenset(index - start for index in self.cut if start <= index < stop),
            None if self.windows is None else self.windows[some],
            sentences=None if self.sentences is None else self.sentences.slice(start, stop),
        )


class TextEncoder:
    """An encoder of texts: the token states of the hidden layers of a Hugging Face model.

    In mode `input` the states are those of the text itself. The model may be an encoder (BERT, RoBERTa, a
    sentence-transformers folder), a classifier, a causal language model (Llama, GPT-NeoX, GPT-2, OPT) or an
    encoder-decoder model (T5, BART, Marian, Pegasus), whose encoder is used. A sequence has one token per id that the
    tokenizer gives for the text, including the special tokens that it adds. A text of more than `max_tokens` tokens
    becomes several sequences, its windows. Windows of a text have the same length. Neighbours share a quarter of
    `max_tokens`, and special tokens and the template are in every window. Detectors judge such a text by its worst
    window.

    In mode `output` the states are those of the model's output for the text, in mode `reference` those of a given
    target. A sequence then has one token per output or target token, including the end-of-sequence token: the state
    that this token is predicted from. The model must be a causal or an encoder-decoder model.

    Padding has no states, and a text without tokens has none in any mode. States depend neither on padding nor on the
    other texts of a call.

    Channels:

    - `input_ids`: the token ids that the states belong to.
    - `text`, and in modes `output` and `reference` also `output_text`. Of a long text, only the first window has it.
    - `window`: the number of the sequence among the windows of its text, if `on_long` is `windows`.
    - `token_logprobs`: the log-probability of each output or target token; in mode `input` of a causal model, that of
      each token except the first.
    - `sample_logprobs`: log-probability and length of each sampled output.
    - `logits`: the class logits of a classifier.
    - `summary`: one vector of D numbers per sequence, another view of it from the same pass: the mean over its tokens
      of the last layer's states if tokens are a mix of layers, and of the mix of all layers if they are of one layer.
      In mode `input` of a causal model, the first token, a sink, is left out unless it is the only one.
    - `sentences`: in mode `input`, for each sentence of a text, its number of tokens and the mean of their input
      embeddings, which do not depend on other sentences. Of a long text, the first window has all sentences, and every
      further window the first one alone.

    Args:
        model: a folder with config.json, safetensors weights and tokenizer files, or a hub id (`owner/name`
            or `owner/name@revision`).
        mode: `input`, `output` or `reference`; the items of `reference` are `Pair(source, target)`.
        layers: the hidden layers that tokens are made of. One number: -1 for the last hidden state as the model returns
            it (after the final norm, if it has one); any other picks from the `hidden_states` of the encoder, decoder
            or causal model, where 0 is the embedding layer. `mix`: the mean over all layers except the embedding
            layer of the states, each scaled to length 1, the last after the final norm. A list of numbers, or a text
            like `mix:4,5,6`: the mix of these layers. By default `auto`: mix, but -1 for the inputs of an
            encoder-decoder model; its outputs and references are mix.
        max_tokens: the largest number of tokens of a sequence. The model's own limit applies if it is smaller.
        on_long: what to do with a longer text. `windows`: it is cut into overlapping windows, at most 64 of them.
            `refuse`: `encode` raises an error. `beginning`: only its beginning is encoded, so a detector accepts any
            text behind an ordinary beginning. By default `windows` in mode `input`, and `beginning` in the other modes,
            where a source has no windows, because there is one output for the whole.
        max_new_tokens: the largest number of tokens of an output; longer targets are cut.
        beams: the number of beams; 1 for greedy search. The model's other generation settings apply, but its output is
            never sampled.
        samples: the number of outputs per text to sample from the model's own distribution, for `sample_logprobs`.
        seed: the seed of the samples, which depend on the text and the seed only.
        template: a text, such as an instruction, with `{text}` in the place of the input.
        special_tokens: False leaves out the states and ids of special tokens, but not their log-probabilities.
        logprobs: False leaves out `token_logprobs`, which cost a product with the vocabulary. True raises an error if
            the model has none. By default they are computed if the model has them.
        summary: whether to compute `summary`.
        sentences: whether to compute `sentences`, if the mode is `input`.
        device: the device of the model; by default a GPU if there is one. States are always returned on the CPU, from
            a GPU mostly in pinned memory.
        dtype: the dtype of the computation and of the states; by default float32 on a CPU and bfloat16 on a GPU.

    Attributes:
        device: the device of the model.
        dim: D, the length of a token.
        identity: the settings that another encoder must share to give the same tokens.
        max_new_tokens: the limit of outputs and targets that applies.
        max_tokens: the limit of texts that applies.
        mode: the mode.
        on_long: what is done with longer texts.
        truncated: the number of texts so far that were cut, or whose target was cut.

    Examples:
        The folder holds a model, for example all-MiniLM-L6-v2.

        >>> encoder = TextEncoder(folder, max_tokens=256)
        >>> batch = encoder.encode(["The weather is fine.", "It rains."])
        >>> len(batch), batch.dim == encoder.dim
        (2, True)
        >>> sorted(batch.channels)
        ['input_ids', 'sentences', 'summary', 'text', 'window']
    """

    def __init__(
        self,
        model: str | Path | Pretrained,
        *,
        mode: Mode = "input",
        layers: LayersLike = "auto",
        max_tokens: int = 512,
        on_long: OnLong | None = None,
        max_new_tokens: int = 128,
        beams: int = 1,
        samples: int = 0,
        seed: int = 0,
        template: str | None = None,
        special_tokens: bool = True,
        logprobs: bool | None = None,
        summary: bool = True,
        sentences: bool = True,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_choice("mode", mode, get_args(Mode))
        check_layers(layers)
        self.on_long: OnLong = _choose_on_long(on_long, mode)
        check_integer("max_tokens", max_tokens, 1)
        check_integer("max_new_tokens", max_new_tokens, 1)
        check_integer("beams", beams, 1)
        check_integer("samples", samples, 0)
        check_integer("seed", seed, 0)
        # Integers of numpy cannot be written as JSON, and the identity is.
        max_tokens, max_new_tokens, beams, samples, seed = map(int, (max_tokens, max_new_tokens, beams, samples, seed))
        if beams > 1 and mode != "output":
            raise InputError(f"beams must be 1 except in mode output, got {beams} in mode {mode}.")
        self.device, self.mode, self.truncated = resolve_device(device), mode, 0
        self._dtype = choose_dtype(self.device) if dtype is None else dtype
        check_dtype(self._dtype)

        pretrained = find_pretrained(model)
        tokenizer = load_tokenizer(pretrained)
        generates = mode != "input" or samples > 0
        loaded = load_text_model(pretrained, self._dtype, generates=generates, logprobs=logprobs is not False)
        if generates:
            _check_generating(loaded, pretrained.name, mode)
        predicts = mode != "input" or loaded.kind == "causal"
        if logprobs and not predicts:
            raise InputError(
                f"The model {pretrained.name!r} ({type(loaded.model).__name__}) does not predict the tokens of a text, "
                "so it has no logprobs in mode input: allowed are causal language models."
            )
        logprobs = predicts and logprobs is not False
        loaded.model.to(self.device).eval()
        self._kind, fill, context = loaded.kind, loaded.padding_id, loaded.context
        self.max_new_tokens = min(max_new_tokens, context if loaded.kind == "encoder-decoder" else context - 1)
        # The output of a causal model takes positions after those of the prompt.
        room = context - self.max_new_tokens if loaded.kind == "causal" and generates else context
        if room < min(max_tokens, 2):
            raise InputError(
                f"An output of {max_new_tokens} tokens leaves no room for a text, because {pretrained.name!r} has "
                f"positions for {context} tokens: lower max_new_tokens."
            )
        self.max_tokens = min(max_tokens, room, tokenizer.model_max_length)
        with _name_tokenizer(pretrained.name):
            self._tokeniser = Tokeniser(tokenizer, pretrained.name, self.max_tokens, template)

        probe = probe_model(loaded, pretrained.name, mode, layers, with_head=logprobs)
        self.dim = probe.dim
        self._embeddings = int(loaded.model.get_input_embeddings().num_embeddings)
        self._gives_sentences = sentences and mode == "input"
        self._pass = TextPass(
            loaded.model,
            loaded.kind,
            mode=mode,
            reader=probe.reader,
            fill=fill,
            special_ids=None if special_tokens else self._tokeniser.special_ids,
            logprobs=logprobs,
            generator=Generator(loaded.model, self.max_new_tokens, beams, fill) if generates else None,
            samples=samples,
            seed=seed,
            summary=summary,
        )
        self._rows: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "states": ((self.dim,), self._dtype),
            "input_ids": ((), torch.int32),
            **({"token_logprobs": ((), torch.float32)} if logprobs else {}),
            **({"sample_logprobs": ((2,), torch.float32)} if samples else {}),
            **({"summary": ((probe.summary_dim,), torch.float32)} if summary else {}),
            **({"logits": ((probe.classes,), torch.float32)} if probe.classes else {}),
        }
        held = probe.reader.count_kept() + (probe.reader.make_other().count_kept() if summary else 0)
        most = _BATCH_STATE_BYTES // (held * self.dim * self._dtype.itemsize)
        self._budget = Budget(min(choose_batch_tokens(self.device), most), 0)
        if outputs := max(beams if beams > 1 else 0, samples + (mode == "output")):
            self._budget = estimate_generation_budget(loaded.model, outputs, self.max_new_tokens)
        self._max_sequences = 1 if probe.classes and not loaded.pads else None
        self._mixes_padding = probe.mixes_padding
        chosen = str(probe.reader.layers)
        self.identity: EncoderIdentity = {
            **pretrained.identify(chosen, mode, self.max_tokens, *find_generation_files(pretrained.folder, mode)),
            **({"on_long": self.on_long} if self.on_long != "beginning" else {}),
            **({"max_new_tokens": self.max_new_tokens} if mode != "input" else {}),
            **({"beams": beams} if beams > 1 else {}),
            **({"template": template} if template is not None else {}),
            **({"special_tokens": False} if not special_tokens else {}),
            **(dict(zip(SAMPLING, (samples, self.max_new_tokens, seed), strict=True)) if samples else {}),
        }

    def __repr__(self) -> str:
        return describe_opened("TextEncoder", self.identity, self.dim, self.device)

    def encode(self, items: Sequence[Any]) -> TokenBatch:
        """Return the states and channels of every item, in the order given."""
        return encode_or_refuse(self, items)

    def prepare(self, items: Sequence[Any]) -> PreparedTexts:
        """Return the token ids of texts, or of pairs in mode `reference`. Another thread may call it.

        Long texts that are refused have no sequence; see `PreparedTexts.refused`.
        """
        with _name_tokenizer(str(self.identity["model"])):
            return self._prepare(items)

    def _prepare(self, items: Sequence[Any]) -> PreparedTexts:
        if self.mode != "reference":
            check_texts(items)
            sources = self._tokeniser.tokenise_documents(items, self.on_long)
            texts = [
                t for text, count in zip(items, sources.counts.tolist(), strict=True) for t in repeat_text(text, count)
            ]
            windows = None
            if self.on_long == "windows":
                windows = list_run_rows(torch.zeros_like(sources.counts), sources.counts)
            sentences = read_sentences(items, sources, self._tokeniser) if self._gives_sentences else None
            cut = frozenset(sources.cut)
            return PreparedTexts(texts, sources.ids, [], None, cut, windows, sources.refused, sentences)
        _check_pairs(items)
        sources = self._tokeniser.tokenise_documents([pair.source for pair in items], self.on_long)
        pairs = [pair for index, pair in enumerate(items) if index not in sources.refused]
        texts, target_texts = [pair.source for pair in pairs], [pair.target for pair in pairs]
        causal, tokeniser = self._kind == "causal", self._tokeniser
        tokenise = tokeniser.tokenise_continuations if causal else tokeniser.tokenise_targets
        targets = tokenise(target_texts, self.max_new_tokens)
        # A target cannot be predicted from a source without tokens.
        predicted = sources.ids.lengths > 0
        values = targets.ids.values[predicted.repeat_interleave(targets.ids.lengths)]
        ids = Ragged.from_lengths(values, targets.ids.lengths * predicted)
        cut = frozenset({*sources.cut, *targets.cut})
        return PreparedTexts(texts, sources.ids, target_texts, ids, cut, None, sources.refused)

    def run(self, prepared: PreparedTexts) -> TokenBatch:
        """Return the states and channels of prepared texts, in their order."""
        self._refuse_unknown_ids(prepared)
        parts = [self._run_part(part) for part in self._split(prepared)]
        self.truncated += len(prepared.cut)
        return parts[0] if len(parts) == 1 else TokenBatch.concatenate(parts)

    def _refuse_unknown_ids(self, prepared: PreparedTexts) -> None:
        sentences = None if prepared.sentences is None else prepared.sentences.ids
        for ids in (prepared.sources, prepared.targets, sentences):
            if ids is not None and len(ids.values) and (largest := int(ids.values.max())) >= self._embeddings:
                raise InputError(
                    f"The tokenizer of {self.identity['model']!r} gives the token id {largest}, but the model has "
                    f"embeddings for {self._embeddings:,} tokens: they do not belong together, or one of them is "
                    "damaged."
                )

    def _split(self, prepared: PreparedTexts) -> Iterator[PreparedTexts]:
        """Yield the texts, on a GPU in parts whose states fit into a limited amount of pinned memory."""
        tokens = self._get_known_tokens(prepared)
        lengths = torch.full((len(prepared.texts),), self.max_new_tokens) if tokens is None else tokens.lengths
        portion = lengths.cumsum(0) * self.dim * self._dtype.itemsize // _RUN_STATE_BYTES
        if self.device.type != "cuda" or len(lengths) == 0 or portion[-1] == 0:
            yield prepared
            return
        bounds = [0, *(portion.diff().nonzero().flatten() + 1).tolist(), len(lengths)]
        for start, stop in pairwise(bounds):
            yield prepared.slice(start, stop)

    def _get_known_tokens(self, prepared: PreparedTexts) -> Ragged | None:
        """Return the tokens whose states are computed; None if they are yet to be generated."""
        return {"input": prepared.sources, "output": None, "reference": prepared.targets}[self.mode]

    def _run_part(self, prepared: PreparedTexts) -> TokenBatch:
        sources, targets, tokens = prepared.sources, prepared.targets, self._get_known_tokens(prepared)
        known = {} if tokens is None else dict.fromkeys(("states", "input_ids"), self._pass.find_kept(tokens).lengths)
        cpu = torch.device("cpu")
        collectors = {
            name: RowCollector(len(sources), row, dtype, cpu if name == "input_ids" else self.device, known.get(name))
            for name, (row, dtype) in self._rows.items()
        }
        with torch.inference_mode():
            todo = [*self.batches(prepared)][::-1]
            while todo:
                chosen = todo.pop()
                found = self._run_batch(sources.select(chosen), None if targets is None else targets.select(chosen))
                if found is None:
                    todo += reversed(chosen.chunk(2))
                    continue
                for name, rows in found.items():
                    collectors[name].add(chosen, rows.lengths, rows.values)
        channels = {name: collector.finish() for name, collector in collectors.items()}
        states = channels.pop("states")
        channels["text"] = encode_texts(prepared.texts)
        if prepared.sentences is not None:
            embeddings = self._pass.model.model.get_input_embeddings()
            channels["sentences"] = embed_sentences(embeddings, prepared.sentences)
        if prepared.windows is not None:
            channels[WINDOW] = Ragged.from_lengths(prepared.windows.int(), [1] * len(prepared.windows))
        if self.mode == "output":
            channels["output_text"] = encode_texts(self._tokeniser.decode(channels["input_ids"]))
        elif self.mode == "reference":
            channels["output_text"] = encode_texts(prepared.target_texts)
        return TokenBatch(states.values, states.offsets, channels, self.identity)

    def _run_batch(self, sources: Ragged, targets: Ragged | None) -> Mapping[str, Rows] | None:
        """Return the states and channels of a batch; None if its texts must be read in smaller batches."""
        try:
            return self._pass.run(sources, targets)
        except torch.OutOfMemoryError:
            if len(sources) == 1:
                raise
        except ValueError:
            # Classifiers like BART's refuse texts with different numbers of end-of-sequence tokens, which a text may
            # have inside.
            if len(sources) == 1 or self._kind != "classifier":
                raise
        torch.cuda.empty_cache()
        return None

    def batches(self, prepared: PreparedTexts) -> Iterator[Tensor]:
        """Yield the indices of the texts that `run` gives to the model at once, batch by batch."""
        lengths, extra = prepared.sources.lengths, self._budget.extra
        targets = 0 if prepared.targets is None else prepared.targets.lengths
        return batch_by_length(
            torch.where(lengths > 0, lengths + targets + extra, 0),
            self._budget.tokens,
            self._max_sequences,
            alike=lengths if self._mixes_padding else None,
        )

    def locate(self, texts: Sequence[str]) -> Ragged:
        """Return where in the texts the tokens of `encode` are, in mode `input`: one sequence per window.

        A row has the start and the end of a token, which count characters of the text; -1 if it is not part of it.
        """
        if self.mode != "input":
            raise InputError(f"In mode {self.mode} the tokens of a sequence are not part of the given text.")
        check_texts(texts)
        rows = [row for windows in self._tokeniser.locate_documents(texts, self.on_long) for row in windows]
        places = torch.tensor([place for row in rows for place in row], dtype=torch.int64).view(-1, 2)
        kept = self._pass.find_kept(self._tokeniser.tokenise_documents(texts, self.on_long).ids)
        return Ragged(places[kept.values], kept.offsets)

    def pieces(self, input_ids: Sequence[int] | Tensor) -> list[str]:
        """Return the text of each token; joined, the pieces make up the text.

        A character that is spread over several tokens belongs to the last of them.
        """
        return self._tokeniser.split_pieces(input_ids)


@contextmanager
def _name_tokenizer(model: str) -> Iterator[None]:
    """Raise InputError in place of the errors of a tokenizer, which have many kinds."""
    try:
        yield
    except (ApoodError, MemoryError):
        raise
    except Exception as error:
        raise InputError(f"The tokenizer of {model!r} cannot be used ({error}): its files may be damaged.") from error


def find_generation_files(folder: Path, mode: Mode) -> list[str]:
    """Return the names of the files whose settings decide what is generated, and so the states of an output."""
    return [name for name in ("generation_config.json",) if mode == "output" and (folder / name).is_file()]


def _check_generating(loaded: LoadedTextModel, name: str, mode: Mode) -> None:
    if loaded.kind not in GENERATING:
        raise InputError(
            f"The model {name!r} ({type(loaded.model).__name__}) cannot generate, so it has no "
            f"{'samples' if mode == 'input' else f'mode {mode}'}: allowed are causal language models and "
            "encoder-decoder models, saved with their heads."
        )
    if loaded.kind == "encoder-decoder" and loaded.config.decoder_start_token_id is None:
        raise InputError(f"The configuration of {name!r} lacks decoder_start_token_id, which outputs start with.")


def _choose_on_long(given: OnLong | None, mode: Mode) -> OnLong:
    if given is None:
        return "windows" if mode == "input" else "beginning"
    check_choice("on_long", given, get_args(OnLong))
    if given == "windows" and mode != "input":
        raise InputError(f"on_long must be beginning or refuse in mode {mode}, whose texts have no windows.")
    return given


def repeat_text(text: str, count: int) -> list[str]:
    """Return the texts of `count` windows: a long text is kept once, not in every window."""
    return [text, *[""] * (count - 1)] if count else []


def check_texts(texts: Sequence[Any]) -> None:
    """Raise InputError if these are not texts."""
    if isinstance(texts, str):
        raise InputError("Texts must be a list of strings, got one string: put it into a list.")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"Texts must be strings, got {type(text).__name__} at index {index}.")


def _check_pairs(pairs: Sequence[Any]) -> None:
    for index, pair in enumerate(pairs):
        if not (isinstance(pair, Pair) and isinstance(pair.source, str) and isinstance(pair.target, str)):
            raise InputError(
                f"Mode reference takes Pair(source, target) of two strings, got {pair!r:.80} at index {index}."
            )
