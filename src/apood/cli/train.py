"""`apood train`: the backbones that the paper trains itself."""

import typer

from apood.cli.train_audio_classifier import audio_classifier
from apood.cli.train_translator import translator

__all__ = ["train"]

train = typer.Typer(no_args_is_help=False)


@train.callback()
def _train() -> None:
    """Train a backbone from scratch: a translator or a classifier of sounds."""


train.command(
    epilog="Example: apood train translator pairs.jsonl --source-field en --target-field fr --out translator"
)(translator)
train.command(epilog="Example: apood train audio-classifier sounds/ --class fan --class pump --out audio-classifier")(
    audio_classifier
)
