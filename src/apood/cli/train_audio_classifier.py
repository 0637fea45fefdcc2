"""`apood train audio-classifier`."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apood.cli.arguments import refuse_occupied
from apood.cli.options import AsJson, Resume
from apood.cli.training import collect_items, open_checkpoint, print_report
from apood.support.checks import suggest_name
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.data.record import BadRecord, Record

__all__ = ["audio_classifier"]


def audio_classifier(
    sounds: Annotated[
        list[str],
        typer.Argument(
            metavar="SOUNDS",
            help="Folders with one folder of .wav and .flac files per class, or .npz archives with labels.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write the model to.")],
    chosen: Annotated[
        list[str] | None,
        typer.Option("--class", metavar="NAME", help="Learn only this class; may be repeated.", show_default="all"),
    ] = None,
    validation: Annotated[
        list[str] | None,
        typer.Option(metavar="SOUNDS", help="Validation sounds.", show_default="a share of SOUNDS"),
    ] = None,
    validation_share: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of each class to validate on without --validation.")
    ] = 0.2,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip sounds that cannot be used.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Length of the model's window in seconds.",
            show_default="the longest sound, at most 10.24",
        ),
    ] = None,
    patch: Annotated[int, typer.Option(min=1, metavar="N", help="Number of mel bins and of frames per patch.")] = 32,
    width: Annotated[int, typer.Option(min=1, metavar="D", help="Length of a token.")] = 32,
    blocks: Annotated[int, typer.Option(min=1, metavar="N", help="Number of blocks of the transformer.")] = 3,
    heads: Annotated[int, typer.Option(min=1, metavar="N", help="Number of attention heads per block.")] = 4,
    pretraining_steps: Annotated[
        int, typer.Option(min=0, metavar="N", help="Number of pretraining batches; 0 skips pretraining.")
    ] = 1000,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Number of training batches.")] = 1000,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Number of sounds per batch.")] = 32,
    learning_rate: Annotated[float, typer.Option(metavar="RATE", help="Peak of the learning rate.")] = 3e-3,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of weights, batches and validation set.")] = 0,
    resume: Resume = False,
    checkpoint_seconds: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Time between two checkpoints."),
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Train a classifier of sounds, a spectrogram transformer (AST) that all other commands accept.

    It first learns to guess hidden patches of the spectrograms (pretraining), then the classes.

    A training keeps its state in FOLDER.checkpoint until it is complete. After an interruption, --resume continues it.

    The accuracy on the validation sounds is printed and kept in training.json.
    """
    refuse_occupied(out)

    from apood.backbones.audio_classifier import AudioRecipe, split_sounds, train_audio_classifier
    from apood.backbones.training_loop import Schedule

    plan = Schedule(steps, learning_rate, warm_up=0.1, weight_decay=0.05, seed=seed)
    pretraining = (
        Schedule(pretraining_steps, 1e-3, warm_up=0.1, weight_decay=0.05, seed=seed) if pretraining_steps else None
    )
    recipe = AudioRecipe(
        pretraining, plan, batch, seconds=seconds, patch=patch, width=width, blocks=blocks, heads=heads
    )  # fmt: skip
    with open_checkpoint(out, checkpoint_seconds, resume=resume) as checkpoint:
        learned, skipped = collect_items(_read(sounds, chosen, patch), skip_bad=skip_bad, what="sounds")
        if validation is None:
            learned, tested = split_sounds(learned, validation_share, seed)
        else:
            tested, also_skipped = collect_items(_read(validation, chosen, patch), skip_bad=skip_bad, what="sounds")
            skipped += also_skipped
        report = train_audio_classifier(learned, tested, out, recipe, checkpoint=checkpoint)
    print_report(report, skipped, out, as_json=as_json)


def _read(inputs: Sequence[str], chosen: Collection[str] | None, patch: int) -> "Iterator[Record | BadRecord]":
    """Yield the sounds of the chosen classes. The first good one determines the rate that all must have."""
    from apood.data.record import BadRecord
    from apood.data.sounds import find_sound_problem, read_sounds
    from apood.encoders.audio.spectrogram import LogMel

    labels: set[str] = set()
    rate = None
    for record in read_sounds(inputs):
        if isinstance(record, BadRecord):
            yield record
            continue
        sound = record.item
        labels.add(str(sound.label))
        if chosen is not None and sound.label not in chosen:
            continue
        needed = sound.rate if rate is None else rate
        least = LogMel(needed).count_samples(patch)
        if problem := find_sound_problem(sound, record.place, rate=needed, least_samples=least):
            yield BadRecord(record.place, problem)
        else:
            rate = needed
            yield record
    for name in chosen or ():
        if name not in labels:
            raise InputError(
                f"There is no class {name!r}{suggest_name(name, labels)} to learn: "
                f"there are {', '.join(map(repr, sorted(labels)))}."
            )
