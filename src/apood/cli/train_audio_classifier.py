"""`apood train audio-classifier`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apood.cli.training import leave_out, refuse_occupied, tell_trained, training_state
from apood.support.checks import suggest_name
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.data.record import Sound

__all__ = ["audio_classifier"]


def audio_classifier(
    sounds: Annotated[
        list[str],
        typer.Argument(
            metavar="SOUNDS",
            help="Folders of .wav and .flac files, in a folder a class, or .npz archives with labels.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the model to write.")],
    chosen: Annotated[
        list[str] | None,
        typer.Option("--class", metavar="NAME", help="Learn this class; may be repeated.", show_default="all"),
    ] = None,
    validation: Annotated[
        list[str] | None,
        typer.Option(metavar="SOUNDS", help="Sounds to validate on.", show_default="a share of those given"),
    ] = None,
    validation_share: Annotated[
        float, typer.Option(metavar="SHARE", help="Of each class, to validate on where no others are given.")
    ] = 0.2,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out sounds that cannot be used.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="The window that the model looks at.", show_default="the longest sound, at most 10.24"
        ),
    ] = None,
    patch: Annotated[int, typer.Option(min=1, metavar="N", help="Mel bins, and frames, of a patch.")] = 32,
    width: Annotated[int, typer.Option(min=1, metavar="D", help="Length of a token.")] = 32,
    blocks: Annotated[int, typer.Option(min=1, metavar="N", help="Blocks of the transformer.")] = 3,
    heads: Annotated[int, typer.Option(min=1, metavar="N", help="Attention heads of a block.")] = 4,
    pretraining_steps: Annotated[
        int, typer.Option(min=0, metavar="N", help="Batches to guess hidden patches of; 0 leaves that out.")
    ] = 1000,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Batches to learn the classes from.")] = 1000,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Sounds in a batch.")] = 32,
    learning_rate: Annotated[float, typer.Option(metavar="RATE", help="Peak of the learning rate.")] = 3e-3,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of weights, batches and the validation set.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a training that was interrupted.")] = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How much work an interruption may cost.")
    ] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was trained as an object.")] = False,
) -> None:
    """Trains a classifier of sounds: a spectrogram transformer (AST) that every other command takes.

    It learns to guess hidden patches of the spectrograms, then the classes. Its state is kept in FOLDER.checkpoint
    until it is complete. The accuracy on the validation sounds is printed and kept in training.json.
    """
    refuse_occupied(out)

    from apood.backbones.audio_classifier import AudioRecipe, split_sounds, train_audio_classifier
    from apood.backbones.training_loop import Plan

    plan = Plan(steps, learning_rate, warm_up=0.1, weight_decay=0.05, seed=seed)
    pretraining = (
        Plan(pretraining_steps, 1e-3, warm_up=0.1, weight_decay=0.05, seed=seed) if pretraining_steps else None
    )
    recipe = AudioRecipe(
        pretraining, plan, batch, seconds=seconds, patch=patch, width=width, blocks=blocks, heads=heads
    )  # fmt: skip
    with training_state(out, checkpoint_seconds, resume=resume) as checkpoint:
        learned, skipped = _read(sounds, chosen, patch, skip_bad)
        if validation is None:
            learned, tested = split_sounds(learned, validation_share, seed)
        else:
            tested, also_skipped = _read(validation, chosen, patch, skip_bad)
            skipped += also_skipped
        report = train_audio_classifier(learned, tested, out, recipe, checkpoint=checkpoint)
    tell_trained(report, skipped, out, as_json=as_json)


def _read(inputs: Sequence[str], chosen: Sequence[str] | None, patch: int, skip_bad: bool) -> "tuple[list[Sound], int]":
    """The sounds of the classes, all of one rate, and how many were skipped because they cannot be used."""
    from apood.data.record import BadRecord, Record
    from apood.data.sounds import find_sound_problem, read_sounds
    from apood.encoders.audio.spectrogram import LogMel

    sounds: list[Sound] = []
    labels: set[str] = set()
    skipped = 0
    for record in read_sounds(inputs):
        if isinstance(record, BadRecord):
            reason: str | None = record.reason
        else:
            rate = sounds[0].rate if sounds else record.item.rate
            reason = find_sound_problem(
                record.item, record.place, rate=rate, least_samples=LogMel(rate).samples_of(patch)
            )
        if reason is not None:
            leave_out(reason, "sounds", skip_bad=skip_bad)
            skipped += 1
        elif isinstance(record, Record):
            labels.add(str(record.item.label))
            if chosen is None or record.item.label in chosen:
                sounds.append(record.item)
    for name in chosen or ():
        if name not in labels:
            raise InputError(
                f"There is no class {name!r}{suggest_name(name, labels)} to learn: "
                f"there are {', '.join(map(repr, sorted(labels)))}."
            )
    return sounds, skipped
