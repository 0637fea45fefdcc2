"""The SentencePiece vocabulary that both languages of a translator share, and its tokenizer files."""

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

from apood.support.checks import check_integer, import_optional
from apood.support.errors import InputError

__all__ = ["EOS", "PAD", "decode_ids", "encode_texts", "train_vocabulary", "write_tokenizer"]

EOS, UNKNOWN, PAD = 0, 1, 2
_THREADS = 16  # fixed, since the pieces depend on sums of floats, and these on how the work is split
_MOST_TEXTS = 200_000  # more texts hardly change the pieces, and take minutes
_ENCODED_AT_ONCE = 20_000


def train_vocabulary(texts: Sequence[str], size: int) -> bytes:
    """Return the content of a file with a unigram model of `size` pieces.

    It is learned from up to 200,000 evenly spaced texts. Every character in them has a piece.
    """
    check_integer("The size of the vocabulary", size, 8)
    sentencepiece = _import_sentencepiece()
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
        raise InputError(
            f"A vocabulary of {size} pieces cannot be learned from these texts: {_explain(error)}."
        ) from error
    return file.getvalue()


def _explain(error: RuntimeError) -> str:
    """Return SentencePiece's reason without the place in its source code."""
    message = str(error)
    if found := re.search(r"Vocabulary size too high .*<= (\d+)", message):
        return f"they allow {found[1]} at most"
    if found := re.search(r"smaller than required_chars.* (\d+) vs (\d+)", message):
        return f"their characters alone need {max(int(found[1]), int(found[2]))}"
    return message.rsplit("] ", 1)[-1].strip().rstrip(".") or "they hold no words"


def encode_texts(vocabulary: bytes, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the ids of all texts one after the other, each with an end-of-sequence id, and their lengths."""
    processor = _import_sentencepiece().SentencePieceProcessor(model_proto=vocabulary)
    ids, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
    for start in range(0, len(texts), _ENCODED_AT_ONCE):
        encoded = processor.encode(list(texts[start : start + _ENCODED_AT_ONCE]), add_eos=True, num_threads=-1)
        lengths.append(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        ids.append(np.fromiter(chain.from_iterable(encoded), np.int32, int(lengths[-1].sum())))
    return np.concatenate(ids), np.concatenate(lengths)


def decode_ids(vocabulary: bytes, ids: Sequence[Sequence[int]]) -> list[str]:
    """Return the texts of lists of ids."""
    processor = _import_sentencepiece().SentencePieceProcessor(model_proto=vocabulary)
    return [processor.decode(list(some)) for some in ids]


def write_tokenizer(vocabulary: bytes, folder: Path, context: int) -> None:
    """Write the files of a MarianTokenizer, which gives the same ids as `encode_texts`."""
    from transformers import MarianTokenizer

    processor = _import_sentencepiece().SentencePieceProcessor(model_proto=vocabulary)
    pieces = {processor.id_to_piece(i): i for i in range(processor.get_piece_size())}
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(pieces, ensure_ascii=False, indent=0), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")  # nothing here calls it
        MarianTokenizer(
            str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"), model_max_length=context
        ).save_pretrained(folder)


def _import_sentencepiece() -> Any:
    return import_optional("sentencepiece", "train", "Training a translator")
