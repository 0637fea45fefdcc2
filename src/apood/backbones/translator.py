"""A translator trained from scratch on pairs of texts, saved as an ordinary Hugging Face folder."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from apood.backbones.bleu import bleu, import_sacrebleu, translate, translation_loss, validation_loss
from apood.backbones.corpus import EOS, MULTIPLE, PAD, Batches, Corpus, train_vocabulary, write_tokenizer
from apood.backbones.training_loop import Schedule, seed_weights, train, write_report
from apood.data.record import Pair
from apood.encoders.base.pretrained import silence_transformers
from apood.fitting.optimise import Checkpoint, run_digest
from apood.support.checks import check_choice, check_integer, check_number
from apood.support.device import resolve_device
from apood.support.errors import InputError
from apood.support.files import atomic_folder
from apood.tokens.batch import dtype_name

__all__ = ["SIZES", "Recipe", "Size", "split_pairs", "train_translator"]


class Size(NamedTuple):
    """The shape of a translator."""

    width: int
    encoder_layers: int
    decoder_layers: int
    heads: int
    feed_forward: int
    vocabulary: int


SIZES = {
    "base": Size(512, 6, 6, 8, 2048, 32_000),  # the Transformer base that the paper trains
    "small": Size(384, 6, 4, 6, 1536, 16_000),  # 26 million weights: 53 MB in float16
    "tiny": Size(64, 2, 2, 4, 256, 2_000),  # to try things out
}


@dataclass(frozen=True)
class Recipe:
    """Everything besides the pairs that determines the trained translator.

    Attributes:
        plan: how long and how fast it learns.
        size: a name in `SIZES`.
        vocabulary: number of pieces that both languages share; None takes the default of the size.
        context: largest number of ids per side of a pair; longer pairs are left out.
        batch_tokens: ids on the longer side of a batch, padding included.
        dropout: share of the activations that a step leaves out.
        label_smoothing: share of the target probability that is spread over the vocabulary.
    """

    plan: Schedule
    size: str = "base"
    vocabulary: int | None = None
    context: int = 512
    batch_tokens: int = 32_768
    dropout: float = 0.1
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        check_choice("The size", self.size, tuple(SIZES))
        check_integer("The context", self.context, MULTIPLE)
        if self.context % MULTIPLE:
            raise InputError(f"The context must be a multiple of {MULTIPLE}, got {self.context}.")
        check_integer("The number of tokens in a batch", self.batch_tokens, self.context)
        check_number("The dropout", self.dropout, least=0, below=1)
        check_number("The label smoothing", self.label_smoothing, least=0, below=1)

    @property
    def pieces(self) -> int:
        """The size of the vocabulary."""
        return SIZES[self.size].vocabulary if self.vocabulary is None else self.vocabulary


def split_pairs(pairs: Sequence[Pair], count: int, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Split pairs at random into training pairs and up to `count` validation pairs, at most one in twenty."""
    if len(pairs) < 2:
        raise InputError(f"There must be at least 2 pairs, to learn from and to validate on, got {len(pairs)}.")
    chosen = np.random.default_rng(seed).permutation(len(pairs))[: min(count, max(1, len(pairs) // 20))]
    apart = set(chosen.tolist())
    return [pair for i, pair in enumerate(pairs) if i not in apart], [pairs[i] for i in sorted(apart)]


def train_translator(
    pairs: Sequence[Pair],
    validation: Sequence[Pair],
    folder: Path,
    recipe: Recipe,
    *,
    checkpoint: Checkpoint,
    beams: int = 4,
    dtype: torch.dtype = torch.float16,
    device: torch.device | str | None = None,
) -> dict[str, Any]:
    """Train a translator on `pairs`, save it to `folder`, and return its quality on `validation`.

    If `checkpoint` has the state of a training with the same pairs and recipe, it continues from there. The report
    describes the saved weights, of `dtype`, and is kept beside them in training.json. By default `device` is a GPU if
    there is one.
    """
    import transformers

    check_integer("The number of beams", beams, 1)
    import_sacrebleu()  # if it is missing, fail now rather than after hours
    if not pairs or not validation:
        raise InputError(f"There are no pairs to {'validate on' if pairs else 'learn from'}.")
    place = resolve_device(device)
    vocabulary = _train_vocabulary(pairs, recipe.pieces, checkpoint.part(0))
    corpus = _encode_pairs(vocabulary, pairs, recipe.context, "learn from")
    tested = _encode_pairs(vocabulary, validation, recipe.context, "validate on")
    exchanged = tested.exchange_sources()
    run = run_digest({"recipe": asdict(recipe), "pairs": corpus.digest(), "validation": tested.digest()})

    model = _make_model(recipe).to(place)
    history = train(
        model,
        Batches(corpus, recipe.batch_tokens, recipe.plan.seed),
        lambda tensors: translation_loss(model, tensors, recipe.label_smoothing),
        recipe.plan,
        run=run,
        checkpoint=checkpoint,
        label="training",
        validate=lambda: validation_loss(model, tested, recipe.batch_tokens),
        validate_exchanged=(lambda: validation_loss(model, exchanged, recipe.batch_tokens))
        if len(tested) > 1
        else None,
    )
    with silence_transformers(), atomic_folder(folder) as temporary:
        model.to("cpu", dtype).save_pretrained(temporary)
        write_tokenizer(vocabulary, temporary, recipe.context)
        saved = transformers.AutoModelForSeq2SeqLM.from_pretrained(temporary, local_files_only=True).float().to(place)
        report = {
            "size": recipe.size,
            "weights": sum(parameter.numel() for parameter in model.parameters()),
            "dtype": dtype_name(dtype),
            "pairs": {"used": len(corpus), "empty": corpus.empty, "too long": corpus.too_long},
            "training": {
                **history.summarize(),
                "epochs": history.tokens / corpus.tokens,
                "tokens": history.tokens,
                "tokens a second": round(history.tokens / history.seconds),
            },
            "validation": _validate(saved, tested, vocabulary, validation, recipe.batch_tokens, beams),
        }
        curves = {
            "losses": history.losses,
            "validation losses": history.validation,
            "validation losses with other sources": history.exchanged,
        }
        explicit = replace(recipe, vocabulary=recipe.pieces)
        write_report(temporary, report | curves, explicit, place, "sentencepiece", "sacrebleu")
    return report


def _train_vocabulary(pairs: Sequence[Pair], pieces: int, checkpoint: Checkpoint) -> bytes:
    """Return the vocabulary, from the checkpoint if it is there.

    Learning it takes minutes, and a resumed training must not depend on the version of SentencePiece.
    """
    texts = [pair.source for pair in pairs] + [pair.target for pair in pairs]
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    run = run_digest({"texts": digest.hexdigest(), "pieces": pieces})
    if (kept := checkpoint.load(run)) is not None:
        return kept[1]["vocabulary"].numpy().tobytes()
    learned = train_vocabulary(texts, pieces)
    content = torch.from_numpy(np.frombuffer(learned, np.uint8).copy())
    Checkpoint(checkpoint.path, every_seconds=0).save_if_due(run, 0, {"vocabulary": content})
    return learned


def _encode_pairs(vocabulary: bytes, pairs: Sequence[Pair], context: int, purpose: str) -> Corpus:
    corpus = Corpus.encode(vocabulary, pairs, context)
    if not len(corpus):
        raise InputError(
            f"None of the {len(pairs)} pairs to {purpose} can be used: {corpus.empty} have an empty side, "
            f"{corpus.too_long} have a side of more than {context} tokens."
        )
    return corpus


def _make_model(recipe: Recipe) -> Any:
    from transformers import MarianConfig, MarianMTModel

    size = SIZES[recipe.size]
    config = MarianConfig(
        vocab_size=recipe.pieces,
        d_model=size.width,
        encoder_layers=size.encoder_layers,
        decoder_layers=size.decoder_layers,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        encoder_ffn_dim=size.feed_forward,
        decoder_ffn_dim=size.feed_forward,
        max_position_embeddings=recipe.context,
        activation_function="relu",
        dropout=recipe.dropout,
        init_std=size.width**-0.5,  # scaled embeddings are then as large as the positions that are added to them
        scale_embedding=True,
        eos_token_id=EOS,
        forced_eos_token_id=EOS,
        pad_token_id=PAD,
        decoder_start_token_id=PAD,
    )
    with seed_weights(recipe.plan.seed):
        model = MarianMTModel(config)
        _initialise(model)
    model.generation_config.max_length = recipe.context
    model.generation_config.bad_words_ids = [[PAD]]  # no target has it, but label smoothing gives it a share
    return model


def _initialise(model: Any) -> None:
    """Draw the matrices of the layers so that each layer starts near the identity. Marian draws the embeddings.

    Marian normalises after its residual branches. If these start as large as what they are added to, the first updates
    move all encoder states to one point, and the decoder learns to ignore them. So the branches are damped until their
    sum is as large as the embeddings, in the spirit of T-Fixup (Huang et al. 2020) and DeepNorm (Wang et al. 2022).
    The whole factor is in the first matrix of a branch: Adam moves all weights equally far, so smaller activations
    between the two matrices mean that the second one shifts all states together less.
    """
    for stack, branches in ((model.get_encoder(), 2), (model.get_decoder(), 3)):  # branches per layer
        damped = (branches * len(stack.layers)) ** -0.5
        for name, module in stack.layers.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, gain=damped if name.endswith(("v_proj", "fc1")) else 1.0)


def _validate(
    model: Any, corpus: Corpus, vocabulary: bytes, pairs: Sequence[Pair], batch_tokens: int, beams: int
) -> dict[str, Any]:
    loss = validation_loss(model, corpus, batch_tokens)
    facts: dict[str, Any] = {"pairs": len(corpus), "loss": loss}
    if len(corpus) > 1:
        facts["loss with other sources"] = validation_loss(model, corpus.exchange_sources(), batch_tokens)
    facts["perplexity"] = math.exp(loss)
    references = [pairs[i].target for i in corpus.kept.tolist()]
    for name, count in {"greedy": 1, f"{beams} beams": beams}.items():
        found = translate(model, corpus, vocabulary, beams=count, batch_tokens=batch_tokens)
        facts[f"BLEU, {name}"], facts["signature"] = bleu(found, references)
    return facts
