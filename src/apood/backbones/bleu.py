"""The quality of a translator on held-out pairs: its loss per token, and BLEU of greedy and beam search."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from apood.backbones.corpus import EOS, PAD, Corpus, decode_ids, pad_pairs
from apood.support.checks import import_optional
from apood.support.progress import progress_bar

__all__ = ["bleu", "import_sacrebleu", "translate", "translation_loss", "validation_loss"]


def translation_loss(model: Any, tensors: Mapping[str, Tensor], label_smoothing: float = 0.0) -> Tensor:
    """Return the mean cross-entropy of the target tokens, including end-of-sequence, in nats."""
    logits = model(
        input_ids=tensors["sources"],
        attention_mask=tensors["sources"] != PAD,
        decoder_input_ids=tensors["given"],
        use_cache=False,
    ).logits
    return cross_entropy(
        logits.flatten(0, 1).float(), tensors["targets"].flatten(), ignore_index=PAD, label_smoothing=label_smoothing
    )


@torch.no_grad()
def validation_loss(model: Any, corpus: Corpus, batch_tokens: int) -> float:
    """Return the loss of all target tokens, without dropout and label smoothing. The model stays in evaluation mode."""
    model.eval()
    device = model.device
    summed = torch.zeros((), dtype=torch.float64, device=device)
    for chosen in _batch_by_length(corpus.longest, batch_tokens):
        tensors = {name: tensor.to(device) for name, tensor in pad_pairs(corpus, chosen).tensors.items()}
        with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
            loss = translation_loss(model, tensors)
        summed += loss.double() * int(corpus.targets.lengths[chosen].sum())
    return float(summed) / int(corpus.targets.lengths.sum())


@torch.inference_mode()
def translate(model: Any, corpus: Corpus, vocabulary: bytes, *, beams: int, batch_tokens: int) -> list[str]:
    """Translate the sources greedily (one beam), or take the best of `beams` by mean log-probability."""
    model.eval()
    device = model.device
    found: list[list[int]] = [[]] * len(corpus)
    lengths = corpus.sources.lengths
    with progress_bar(len(corpus), f"translating with {beams} {'beams' if beams > 1 else 'beam'}") as progress:
        for chosen in _batch_by_length(lengths, max(1, batch_tokens // beams)):
            sources = corpus.sources.pad(chosen).to(device)
            with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
                outputs = model.generate(
                    input_ids=sources,
                    attention_mask=sources != PAD,
                    num_beams=beams,
                    do_sample=False,
                    length_penalty=1.0,
                    # the rest of a sentence that does not end is noise and would only cost time
                    max_length=min(model.config.max_position_embeddings, 2 * int(lengths[chosen].max()) + 16),
                )
            for i, output in zip(chosen.tolist(), outputs.tolist(), strict=True):
                ids = output[1:]  # the decoder starts with a token of its own
                found[i] = ids[: ids.index(EOS)] if EOS in ids else ids
            progress.update(len(chosen))
    return decode_ids(vocabulary, found)


def bleu(translations: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Return the corpus BLEU in percent and sacrebleu's signature, which says how it was computed."""
    metric = import_sacrebleu().BLEU()
    score = metric.corpus_score(list(translations), [list(references)])
    return float(score.score), str(metric.get_signature())


def import_sacrebleu() -> Any:
    """Return the package, or raise an error that says how to install it."""
    return import_optional("sacrebleu", "train", "Validating a translator")


def _batch_by_length(lengths: NDArray[np.int64], batch_tokens: int) -> Iterator[NDArray[np.int64]]:
    """Yield all positions from the longest down, as many at a time as the budget holds, padded to the first."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        count = max(1, batch_tokens // int(lengths[order[start]]))
        yield order[start : start + count]
        start += count
