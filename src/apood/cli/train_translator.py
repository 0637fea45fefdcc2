"""`apood train translator`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from apood.cli.arguments import refuse_occupied
from apood.cli.options import AsJson, Resume
from apood.cli.training import collect_items, open_checkpoint, print_report

__all__ = ["translator"]


class ModelSize(StrEnum):
    """The sizes of `apood.backbones.translator.SIZES`."""

    base = "base"
    small = "small"
    tiny = "tiny"


class WeightDtype(StrEnum):
    """The dtypes that weights can be saved in."""

    float16 = "float16"
    float32 = "float32"


def translator(
    pairs: Annotated[
        list[str],
        typer.Argument(
            metavar="PAIRS", help="Pairs of texts: inputs as for `apood embed`, with two fields per record."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write the model to.")],
    source_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Field that holds the text to translate.", show_default="that of the input"),
    ] = None,
    target_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Field that holds its translation.", show_default="that of the input"),
    ] = None,
    validation: Annotated[
        list[str] | None,
        typer.Option(metavar="PAIRS", help="Validation pairs.", show_default="one in twenty of PAIRS"),
    ] = None,
    validation_pairs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Largest number of validation pairs.")
    ] = 1000,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip records that are not pairs.")] = False,
    size: Annotated[
        ModelSize,
        typer.Option("--size", metavar="SIZE", help="base (the paper's), small (53 MB) or tiny (for trials)."),
    ] = ModelSize.base,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            min=8, metavar="N", help="Number of pieces that both languages share.", show_default="32000, 16000 or 2000"
        ),
    ] = None,
    context: Annotated[
        int, typer.Option(min=8, metavar="N", help="Skip pairs with more tokens on a side; a multiple of 8.")
    ] = 512,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Largest number of training batches.")] = 100_000,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="M", help="Longest duration; it shortens the schedule.", show_default="no limit"),
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(min=8, metavar="N", help="Tokens per batch on its longer side, including padding.")
    ] = 32_768,
    learning_rate: Annotated[float, typer.Option(metavar="RATE", help="Peak of the learning rate.")] = 5e-4,
    warm_up: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the training in which the learning rate rises.")
    ] = 0.04,
    dropout: Annotated[float, typer.Option(metavar="SHARE", help="Share of the activations that a step drops.")] = 0.1,
    label_smoothing: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the probability that is spread over the vocabulary.")
    ] = 0.1,
    validate_every: Annotated[int, typer.Option(min=1, metavar="STEPS", help="Steps between two validations.")] = 1000,
    beams: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of beams of the second BLEU; the first is greedy.")
    ] = 4,
    dtype: Annotated[
        WeightDtype, typer.Option("--dtype", metavar="DTYPE", help="Dtype of the saved weights: float16 or float32.")
    ] = WeightDtype.float16,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of weights, batches and dropout.")] = 0,
    resume: Resume = False,
    checkpoint_seconds: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Time between two checkpoints."),
    ] = 120.0,
    as_json: AsJson = False,
) -> None:
    """Train a translator on pairs of texts, a Marian model that all other commands accept.

    A training keeps its state in FOLDER.checkpoint until it is complete. After an interruption, --resume continues it.

    The loss and the BLEU of greedy and beam search on the validation pairs are printed and kept in training.json.
    """
    refuse_occupied(out)
    import torch

    from apood.backbones.training_loop import Schedule
    from apood.backbones.translator import Recipe, split_pairs, train_translator
    from apood.data.inputs import read_records
    from apood.data.record import Pair

    plan = Schedule(
        steps=steps,
        learning_rate=learning_rate,
        warm_up=warm_up,
        minutes=minutes,
        seed=seed,
        validate_every=validate_every,
    )
    recipe = Recipe(plan, size.value, vocabulary, context, batch_tokens, dropout, label_smoothing)

    def read(inputs: list[str]) -> tuple[list[Pair], int]:
        records = read_records(inputs, field=source_field, target_field=target_field, pairs=True)
        return collect_items(records, skip_bad=skip_bad, what="records")

    with open_checkpoint(out, checkpoint_seconds, resume=resume) as checkpoint:
        learned, skipped = read(pairs)
        if validation is None:
            learned, tested = split_pairs(learned, validation_pairs, seed)
        else:
            tested, also_skipped = read(validation)
            tested, skipped = tested[:validation_pairs], skipped + also_skipped
        report = train_translator(
            learned, tested, out, recipe, checkpoint=checkpoint, beams=beams, dtype=getattr(torch, dtype.value)
        )
    print_report(report, skipped, out, as_json=as_json)
