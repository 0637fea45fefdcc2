"""A SentencePiece vocabulary that both languages of a translator share, and the tokenizer files made of it."""

import io
import json
import re
import warnings
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apood.support.checks import check_integer
from apood.support.errors import InputError

__all__ = ["EOS", "PAD", "decode_ids", "encode_texts", "train_vocabulary", "write_tokenizer"]

EOS, UNKNOWN, PAD = 0, 1, 2
_THREADS = 16  # always as many: the sums of floats that the pieces follow from depend on how the work is split
_MOST_TEXTS = 200_000  # more change the pieces hardly, and take minutes
_ENCODED_AT_ONCE = 20_000


def train_vocabulary(texts: Sequence[str], size: int) -> bytes:
    """A unigram model of `size` pieces, as the content of its file.

    It is learned from up to 200,000 texts, evenly spaced among those given. Every character of them has a piece.
    """
    check_integer("The size of the vocabulary", size, 8)
    sentencepiece = _sentencepiece()
    chosen = np.linspace(0, len(texts) - 1, min(len(texts), _MOST_TEXTS)).round().astype(np.int64).tolist()
    file = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([texts[i] for i in chosen]),
            model_writer=file,
            vocab_size=size,
            model_type="unigram",
            character_coverage=1.0,
            eos_id=EOS,
            unk_id=UNKNOWN,
            pad_id=PAD,
            bos_id=-1,
            num_threads=_THREADS,
            minloglevel=3,
        )
    except RuntimeError as error:
        raise InputError(f"A vocabulary of {size} pieces cannot be learned from these texts: {_why(error)}.") from error
    return file.getvalue()


def _why(error: RuntimeError) -> str:
    """What SentencePiece says, without the place in its source."""
    message = str(error)
    if found := re.search(r"Vocabulary size too high .*<= (\d+)", message):
        return f"they allow {found[1]} at most"
    if found := re.search(r"smaller than required_chars.* (\d+) vs (\d+)", message):
        return f"their characters alone need {max(int(found[1]), int(found[2]))}"
    return message.rsplit("] ", 1)[-1].strip().rstrip(".") or "they hold no words"


def encode_texts(vocabulary: bytes, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The ids of all texts one after the other, each with an end-of-sequence id, and their lengths."""
    processor = _sentencepiece().SentencePieceProcessor(model_proto=vocabulary)
    ids, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
    for start in range(0, len(texts), _ENCODED_AT_ONCE):
        encoded = processor.encode(list(texts[start : start + _ENCODED_AT_ONCE]), add_eos=True, num_threads=-1)
        lengths.append(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        ids.append(np.fromiter(chain.from_iterable(encoded), np.int32, int(lengths[-1].sum())))
    return np.concatenate(ids), np.concatenate(lengths)


def decode_ids(vocabulary: bytes, ids: Sequence[Sequence[int]]) -> list[str]:
    """The texts that lists of ids stand for."""
    processor = _sentencepiece().SentencePieceProcessor(model_proto=vocabulary)
    return [processor.decode(list(some)) for some in ids]


def write_tokenizer(vocabulary: bytes, folder: Path, context: int) -> None:
    """Writes the files that make `folder` the place of a MarianTokenizer; its ids are those of `encode_texts`."""
    from transformers import MarianTokenizer

    processor = _sentencepiece().SentencePieceProcessor(model_proto=vocabulary)
    pieces = {processor.id_to_piece(i): i for i in range(processor.get_piece_size())}
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(pieces, ensure_ascii=False, indent=0), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")  # nothing here calls it
        MarianTokenizer(
            str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"), model_max_length=context
        ).save_pretrained(folder)


def _sentencepiece() -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise InputError(
            "Training a translator needs the package sentencepiece: pip install 'apood[train]'."
        ) from error
    return sentencepiece
