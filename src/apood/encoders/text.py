"""From texts to the token states of a frozen transformer."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from apood.encoders.identity import fingerprint
from apood.encoders.pretrained import Pretrained, find_pretrained, load_backbone, load_tokenizer
from apood.support.errors import InputError
from apood.tokens.batch import FLOAT_DTYPES, Ragged, TokenBatch, dtype_name
from apood.tokens.identity import EncoderIdentity
from apood.tokens.text import text_channel

__all__ = ["TextEncoder"]

_CPU_BATCH_TOKENS = 2048
_GPU_BATCH_TOKENS = 32768
_BATCH_STATE_BYTES = 1 << 30


class TextEncoder:
    """Token states of one hidden layer of a Hugging Face model, for texts.

    The model may be an encoder (BERT, RoBERTa, a sentence-transformers folder), a causal language model
    (Llama, GPT-NeoX, GPT-2, OPT) or an encoder-decoder model (T5, BART, Marian, Pegasus), of which the
    encoder's states are taken.

    A sequence has one token for each id that the model's tokenizer gives for the text: the special tokens it
    adds by itself ([CLS] and [SEP], a beginning or end of sequence) are in, padding is not. Where a tokenizer
    adds none, the empty text has no tokens. States depend neither on padding nor on the other texts of a call.

    Args:
        model: a folder with config.json, safetensors weights and tokenizer files, or a hub id (`owner/name`
            or `owner/name@revision`).
        layer: -1 for the last hidden state as the model returns it (after the final norm where it has one);
            any other number picks from the model's `hidden_states`, where 0 is the embedding layer.
        max_tokens: longer texts are cut at their end; the model's own limit holds where it is smaller.
        device: where the model runs; a GPU if there is one by default. States always come back on the CPU.
        dtype: the dtype that the model computes in and that the states have.

    Attributes:
        dim: D, the length of a token.
        max_tokens: the limit in force.
        truncated: how many texts were cut by this encoder so far.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        layer: int = -1,
        max_tokens: int = 512,
        device: str | torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if max_tokens < 1:
            raise InputError(f"max_tokens must be at least 1, got {max_tokens}.")
        if dtype not in FLOAT_DTYPES:
            raise InputError(f"An encoder computes in {', '.join(map(dtype_name, FLOAT_DTYPES))}, got {dtype}.")
        self.device = _as_device(device)
        self.truncated = 0
        pretrained = find_pretrained(model)
        self._tokenizer = load_tokenizer(pretrained)
        self._tokenizer.truncation_side = "right"
        backbone, config = load_backbone(pretrained, dtype)
        self._model = backbone.to(self.device).eval()
        self._padding = getattr(config, "pad_token_id", None) or 0
        self.max_tokens = min(max_tokens, _context(backbone, config), self._tokenizer.model_max_length)
        self._refuse_no_room(pretrained)
        self.dim, layers = self._probe(pretrained)
        if not -layers <= layer < layers:
            raise InputError(
                f"Layer {layer} of {pretrained.name!r} does not exist: allowed are {-layers} to {layers - 1}."
            )
        # Every layer but the last is counted from the bottom, so that one layer has one number.
        self._layer = layer if layer >= -1 else layer + layers
        # A model that is asked for its hidden states keeps all of them until the end.
        states = layers if self._layer != -1 else 1
        self._batch_tokens = min(
            _CPU_BATCH_TOKENS if self.device.type == "cpu" else _GPU_BATCH_TOKENS,
            _BATCH_STATE_BYTES // (states * self.dim * dtype.itemsize),
        )
        self._dtype = dtype
        self.identity: EncoderIdentity = {
            "model": pretrained.name,
            "revision": pretrained.revision,
            "layer": self._layer,
            "mode": "input",
            "max_tokens": self.max_tokens,
            "fingerprint": fingerprint(pretrained.folder),
        }

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """The states of every text, in the order given, with the channels `input_ids` and `text`."""
        _refuse_bad_texts(texts)
        ids = self._tokenise(texts)
        input_ids = Ragged.from_lengths(
            torch.tensor([token for row in ids for token in row], dtype=torch.int32), [len(row) for row in ids]
        )
        values = torch.empty(len(input_ids.values), self.dim, dtype=self._dtype)
        with torch.inference_mode():
            for chosen in self._batches(input_ids.lengths):
                rows = [input_ids.sequence(index) for index in chosen]
                for index, states in zip(chosen, self._states(rows), strict=True):
                    values[input_ids.offsets[index] : input_ids.offsets[index + 1]] = states
        channels = {"input_ids": input_ids, "text": text_channel(texts)}
        return TokenBatch(values, input_ids.offsets, channels, self.identity)

    def pieces(self, input_ids: Sequence[int] | Tensor) -> list[str]:
        """What each token reads as; joined, the pieces read as the text.

        A character that is spread over several tokens belongs to the last of them.
        """
        ids = [int(token) for token in input_ids]
        pieces: list[str] = []
        # A token's text depends on the one before it (is there a space between them?), so each is decoded behind
        # the tokens of the last complete piece.
        before = done = 0
        for stop in range(1, len(ids) + 1):
            known, longer = self._decode(ids[before:done]), self._decode(ids[before:stop])
            complete = len(longer) > len(known) and not longer.endswith("\ufffd")
            pieces.append(longer[len(known) :] if complete or stop == len(ids) else "")
            if complete:
                before, done = done, stop
        return pieces

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        encoded = self._tokenizer(
            [_readable(text) for text in texts],
            truncation=True,
            max_length=self.max_tokens,
            return_attention_mask=False,
            verbose=False,
        )
        ids: list[list[int]] = encoded["input_ids"]
        if encoded.encodings is not None:
            self.truncated += sum(bool(encoding.overflowing) for encoding in encoded.encodings)
        else:  # a tokenizer written in Python does not say what it cut: look at the texts that fill the limit
            full = [text for text, row in zip(texts, ids, strict=True) if len(row) == self.max_tokens]
            self.truncated += sum(
                len(self._tokenizer(_readable(text), verbose=False)["input_ids"]) > self.max_tokens for text in full
            )
        return ids

    def _batches(self, lengths: Tensor) -> Iterator[list[int]]:
        """Texts of similar length together, the longest first, so that too large a batch fails at the start."""
        order = lengths.argsort(descending=True, stable=True)
        order = order[: int((lengths > 0).sum())]
        start = 0
        while start < len(order):
            count = max(1, self._batch_tokens // int(lengths[order[start]]))
            yield order[start : start + count].tolist()
            start += count

    def _states(self, rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The states of token ids that share one padded batch.

        Padding is on the right, where it shifts no position and a causal model does not see it.
        """
        lengths = [len(row) for row in rows]
        ids = nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=self._padding)
        mask = torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]
        ids, mask = ids.to(self.device, torch.int64), mask.to(self.device)
        output = self._model(
            input_ids=ids, attention_mask=mask.to(torch.int64), output_hidden_states=self._layer != -1, return_dict=True
        )
        states: Tensor = output.last_hidden_state if self._layer == -1 else output.hidden_states[self._layer]
        return torch.split(states[mask].cpu(), lengths)

    def _probe(self, pretrained: Pretrained) -> tuple[int, int]:
        """D and the number of hidden states, from the model itself: configurations name them in many ways."""
        one = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        try:
            with torch.inference_mode():
                output = self._model(input_ids=one, attention_mask=one + 1, output_hidden_states=True, return_dict=True)
            return output.last_hidden_state.shape[-1], len(output.hidden_states)
        except Exception as error:  # a model for other inputs fails in its own way
            raise InputError(
                f"The model {pretrained.name!r} ({type(self._model).__name__}) gives no hidden states for token ids: "
                "allowed are text encoders, causal language models and encoder-decoder models."
            ) from error

    def _refuse_no_room(self, pretrained: Pretrained) -> None:
        """Tokenizers ignore a limit below the number of tokens they add, and cut nothing at all."""
        added = self._tokenizer.num_special_tokens_to_add()
        if self.max_tokens <= added:
            raise InputError(
                f"max_tokens must be at least {added + 1} for {pretrained.name!r}, whose tokenizer adds {added} "
                f"special tokens to every text, got {self.max_tokens}."
            )


def _context(model: nn.Module, config: Any) -> int:
    """How many tokens the model has positions for."""
    for name, module in model.named_modules():
        # RoBERTa and its kin count positions from behind the padding index.
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.num_embeddings - module.padding_idx - 1
    return int(getattr(config, "max_position_embeddings", None) or 1 << 62)


def _as_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"The device {str(device)!r} cannot be used here: allowed are 'cpu' and, with a GPU, 'cuda'."
        ) from error
    return chosen


def _refuse_bad_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise InputError("Texts must be a list of strings, got one string: put it into a list.")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"Texts must be strings, got {type(text).__name__} at index {index}.")


def _readable(text: str) -> str:
    """The text as a tokenizer takes it: lone surrogates, which broken sources contain, become the replacement sign."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
