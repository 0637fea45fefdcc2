"""`apood train translator`."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apood.cli.training import leave_out, refuse_occupied, tell_trained, training_state

if TYPE_CHECKING:
    from apood.data.record import Pair

__all__ = ["translator"]


class ModelSize(StrEnum):
    """The shapes that there are."""

    base = "base"
    small = "small"
    tiny = "tiny"


class WeightDtype(StrEnum):
    """What weights may be saved in."""

    float16 = "float16"
    float32 = "float32"


def translator(
    pairs: Annotated[
        list[str],
        typer.Argument(metavar="PAIRS", help="Pairs of texts, two fields of each record; inputs as for apood embed."),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the model to write.")],
    source_field: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Field that holds the text to translate.", show_default="what the input says"
        ),
    ] = None,
    target_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Field that holds its translation.", show_default="what the input says"),
    ] = None,
    validation: Annotated[
        list[str] | None,
        typer.Option(metavar="PAIRS", help="Pairs to validate on.", show_default="one in twenty of those given"),
    ] = None,
    validation_pairs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Validate on so many pairs at most.")
    ] = 1000,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out records that are not pairs.")] = False,
    size: Annotated[
        ModelSize, typer.Option("--size", metavar="SIZE", help="base (the paper's), small (53 MB) or tiny (to try).")
    ] = ModelSize.base,
    vocabulary: Annotated[
        int | None,
        typer.Option(min=8, metavar="N", help="Pieces that both languages share.", show_default="32000, 16000 or 2000"),
    ] = None,
    context: Annotated[
        int, typer.Option(min=8, metavar="N", help="Pairs with more tokens on a side are left out; a multiple of 8.")
    ] = 512,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Batches to learn from.")] = 100_000,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="M", help="End after so long, the schedule shortened to it.", show_default="no limit"),
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(min=8, metavar="N", help="Tokens of a batch on its longer side, padding included.")
    ] = 32_768,
    learning_rate: Annotated[float, typer.Option(metavar="RATE", help="Peak of the learning rate.")] = 5e-4,
    warm_up: Annotated[float, typer.Option(metavar="SHARE", help="Share of the training in which it rises.")] = 0.04,
    dropout: Annotated[float, typer.Option(metavar="SHARE", help="Activations that a step leaves out.")] = 0.1,
    label_smoothing: Annotated[
        float, typer.Option(metavar="SHARE", help="Target probability spread over the vocabulary; 0 for none.")
    ] = 0.1,
    validate_every: Annotated[
        int, typer.Option(min=1, metavar="STEPS", help="Steps between two validation losses on the way.")
    ] = 1000,
    beams: Annotated[int, typer.Option(min=1, metavar="N", help="Beams of the second BLEU; the first is greedy.")] = 4,
    dtype: Annotated[
        WeightDtype, typer.Option("--dtype", metavar="DTYPE", help="What the weights are saved in: float16 or float32.")
    ] = WeightDtype.float16,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of weights, batches and dropout.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a training that was interrupted.")] = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How much work an interruption may cost.")
    ] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was trained as an object.")] = False,
) -> None:
    """Trains a translator on pairs of texts: a Marian model that every other command takes.

    Its state is kept in FOLDER.checkpoint until it is complete. A loss and the BLEU of greedy and beam search on the
    validation pairs are printed and kept in training.json.
    """
    refuse_occupied(out)
    import torch

    from apood.backbones.training_loop import Plan
    from apood.backbones.translator import Recipe, held_out, train_translator

    plan = Plan(
        steps=steps,
        learning_rate=learning_rate,
        warm_up=warm_up,
        minutes=minutes,
        seed=seed,
        watch_every=validate_every,
    )
    recipe = Recipe(plan, size.value, vocabulary, context, batch_tokens, dropout, label_smoothing)
    with training_state(out, checkpoint_seconds, resume=resume) as checkpoint:
        learned, skipped = _read(pairs, source_field, target_field, skip_bad)
        if validation is None:
            learned, tested = held_out(learned, validation_pairs, seed)
        else:
            tested, also_skipped = _read(validation, source_field, target_field, skip_bad)
            tested, skipped = tested[:validation_pairs], skipped + also_skipped
        report = train_translator(
            learned, tested, out, recipe, checkpoint=checkpoint, beams=beams, dtype=getattr(torch, dtype.value)
        )
    tell_trained(report, skipped, out, as_json=as_json)


def _read(
    inputs: Sequence[str], source_field: str | None, target_field: str | None, skip_bad: bool
) -> "tuple[list[Pair], int]":
    """The pairs, and how many records were skipped because they are none."""
    from apood.data.inputs import read_records
    from apood.data.record import BadRecord

    pairs: list[Pair] = []
    skipped = 0
    for record in read_records(inputs, field=source_field, target_field=target_field, pairs=True):
        if not isinstance(record, BadRecord):
            pairs.append(record.item)
        else:
            leave_out(record.reason, "records", skip_bad=skip_bad)
            skipped += 1
    return pairs, skipped
