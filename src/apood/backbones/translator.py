"""A translator trained from scratch on pairs of texts, saved as an ordinary Hugging Face folder."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from apood.backbones.bleu import bleu, load_sacrebleu, translate, translation_loss, validation_loss
from apood.backbones.corpus import MULTIPLE, Batches, Corpus
from apood.backbones.training_loop import Outcome, Plan, train
from apood.backbones.vocabulary import EOS, PAD, train_vocabulary, write_tokenizer
from apood.data.record import Pair
from apood.encoders.base.pretrained import silence_transformers
from apood.fitting.checkpoint import Checkpoint, run_digest
from apood.support.checks import check_choice, check_integer, check_number
from apood.support.device import resolve_device
from apood.support.errors import InputError
from apood.support.files import atomic_folder, write_json
from apood.support.version import __version__
from apood.tokens.batch import dtype_name

__all__ = ["SIZES", "Recipe", "Size", "held_out", "train_translator"]


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
    """What decides the translator that a training ends in, besides the pairs.

    Attributes:
        plan: how long and how fast it learns.
        size: a name of `SIZES`.
        vocabulary: pieces that both languages share; None takes what belongs to the size.
        context: ids that a side of a pair may have; pairs with more are left out.
        batch_tokens: ids of the longer side of a batch, padding included.
        dropout: share of the activations that a step leaves out.
        label_smoothing: share of the target probability that is spread over the vocabulary.
    """

    plan: Plan
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


def held_out(pairs: Sequence[Pair], count: int, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Splits pairs into those to learn from and up to `count` to validate on, at most one in twenty."""
    if len(pairs) < 2:
        raise InputError(f"There must be at least 2 pairs to learn from and to validate on, got {len(pairs)}.")
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
    """Trains a translator on `pairs`, saves it to `folder`, and reports how good it is on `validation`.

    A training whose state is in `checkpoint` goes on from there, with the same pairs and recipe. The report is about
    the saved weights, of `dtype`, and is kept as training.json beside them. `device` is a GPU where there is one.
    """
    import transformers

    check_integer("The number of beams", beams, 1)
    load_sacrebleu()  # rather now than after hours
    if not pairs or not validation:
        raise InputError(f"There are no pairs to {'validate on' if pairs else 'learn from'}.")
    place = resolve_device(device)
    vocabulary = _vocabulary(pairs, recipe.pieces, checkpoint.part(0))
    corpus = _corpus(vocabulary, pairs, recipe.context, "learn from")
    tested = _corpus(vocabulary, validation, recipe.context, "validate on")
    run = run_digest({"recipe": asdict(recipe), "pairs": corpus.digest(), "validation": tested.digest()})

    exchanged = tested.exchanged()
    model = _new_model(recipe).to(place)
    outcome = train(
        model,
        Batches(corpus, recipe.batch_tokens, recipe.plan.seed),
        lambda tensors: translation_loss(model, tensors, recipe.label_smoothing),
        recipe.plan,
        run=run,
        checkpoint=checkpoint,
        label="training",
        watch=lambda: validation_loss(model, tested, recipe.batch_tokens),
        exchanged=(lambda: validation_loss(model, exchanged, recipe.batch_tokens)) if len(tested) > 1 else None,
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
            "training": _summary(outcome, corpus),
            "validation": _validation(saved, tested, vocabulary, validation, recipe.batch_tokens, beams),
        }
        details = {
            "losses": outcome.losses,
            "validation losses": outcome.watched,
            "validation losses with other sources": outcome.exchanged,
            "recipe": asdict(recipe) | {"vocabulary": recipe.pieces},
            "versions": _versions(),
            "device": torch.cuda.get_device_name(place) if place.type == "cuda" else place.type,
        }
        write_json(temporary / "training.json", report | details)
    return report


def _vocabulary(pairs: Sequence[Pair], pieces: int, checkpoint: Checkpoint) -> bytes:
    """Learned once: it takes minutes, and nothing that is resumed may depend on the version of SentencePiece."""
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


def _corpus(vocabulary: bytes, pairs: Sequence[Pair], context: int, purpose: str) -> Corpus:
    corpus = Corpus.of(vocabulary, [pair.source for pair in pairs], [pair.target for pair in pairs], context)
    if not len(corpus):
        raise InputError(
            f"None of the {len(pairs)} pairs to {purpose} can be used: {corpus.empty} have an empty side, "
            f"{corpus.too_long} have one of more than {context} tokens."
        )
    return corpus


def _new_model(recipe: Recipe) -> Any:
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
        init_std=size.width**-0.5,  # then scaled embeddings are as large as the positions that are added to them
        scale_embedding=True,
        eos_token_id=EOS,
        forced_eos_token_id=EOS,
        pad_token_id=PAD,
        decoder_start_token_id=PAD,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(recipe.plan.seed)  # not those of GPUs, which are the caller's
        model = MarianMTModel(config)
        _initialise(model)
    model.generation_config.max_length = recipe.context
    model.generation_config.bad_words_ids = [[PAD]]  # no target has it, but label smoothing gives it a share
    return model


def _initialise(model: Any) -> None:
    """Draws the matrices of the layers so that each layer starts near the identity; Marian draws the embeddings.

    Marian normalises behind its residual branches. Where these start as large as what they are added to, the first
    updates lead all encoder states to one point, and the decoder learns to do without them. So the branches are damped
    until their sum is as large as the embeddings, in the spirit of T-Fixup (Huang et al. 2020) and DeepNorm (Wang et
    al. 2022). The whole factor is in the first matrix of a branch: Adam moves all weights equally far, so the smaller
    the activations between the two matrices are, the less does the second one shift all states together.
    """
    for stack, branches in ((model.get_encoder(), 2), (model.get_decoder(), 3)):  # of each layer
        damped = (branches * len(stack.layers)) ** -0.5
        for name, module in stack.layers.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, gain=damped if name.endswith(("v_proj", "fc1")) else 1.0)


def _summary(outcome: Outcome, corpus: Corpus) -> dict[str, Any]:
    return {
        "steps": outcome.steps,
        "epochs": outcome.tokens / corpus.tokens,
        "minutes": outcome.seconds / 60,
        "tokens": outcome.tokens,
        "tokens a second": round(outcome.tokens / outcome.seconds),
        "loss": outcome.losses[-1].loss,
    }


def _validation(
    model: Any, corpus: Corpus, vocabulary: bytes, pairs: Sequence[Pair], batch_tokens: int, beams: int
) -> dict[str, Any]:
    loss = validation_loss(model, corpus, batch_tokens)
    references = [pairs[i].target for i in corpus.kept.tolist()]
    facts: dict[str, Any] = {"pairs": len(corpus), "loss": loss}
    if len(corpus) > 1:
        facts["loss with other sources"] = validation_loss(model, corpus.exchanged(), batch_tokens)
    facts["perplexity"] = math.exp(loss)
    for name, count in {"greedy": 1, f"{beams} beams": beams}.items():
        found = translate(model, corpus, vocabulary, beams=count, batch_tokens=batch_tokens)
        facts[f"BLEU, {name}"], facts["signature"] = bleu(found, references)
    return facts


def _versions() -> dict[str, str]:
    return {"apood": __version__} | {
        name: version(name) for name in ("torch", "transformers", "sentencepiece", "sacrebleu")
    }
