"""The program `apood` and its commands."""

import signal
from typing import Annotated

import typer

from apood.cli.bench import bench
from apood.cli.calibrate import calibrate
from apood.cli.compare import compare
from apood.cli.datasets import datasets
from apood.cli.demo import demo
from apood.cli.embed import EXAMPLES, embed
from apood.cli.evaluate import evaluate
from apood.cli.fit import fit
from apood.cli.inspect import inspect
from apood.cli.methods import methods
from apood.cli.output import PlainGroup
from apood.cli.score import score
from apood.cli.select import select
from apood.cli.train import train

__all__ = ["app", "main"]

app = typer.Typer(
    name="apood",
    cls=PlainGroup,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from apood import __version__

        typer.echo(f"apood {__version__}")
        raise typer.Exit


@app.callback(epilog="From text to a decision: apood embed, apood fit, apood calibrate, apood score.")
def _apood(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Tells whether an input belongs to the distribution a model was trained on, from its token embeddings."""
    del version  # its callback did the work
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for command, example in (
    (demo, "apood demo --out demo"),
    (embed, EXAMPLES),
    (fit, "apood fit train --out detector"),
    (calibrate, "apood calibrate detector held-out --accept 0.95"),
    (score, "apood score detector new.jsonl --out scores.csv"),
    (evaluate, "apood evaluate detector --id test --ood news=news --ood code=code"),
    (select, "apood select train --aux outliers --out search"),
    (compare, "apood compare --id-train train --id-test test --ood news=news --ood code=code --out comparison"),
    (methods, "apood methods"),
    (datasets, "apood datasets xsum"),
    (inspect, "apood inspect train --verify"),
):
    app.command(epilog=f"Example: {example}")(command)
app.add_typer(bench, name="bench")
app.add_typer(train, name="train")


def main() -> None:
    """What the installed program runs."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's way of saying Ctrl-C
    app()
