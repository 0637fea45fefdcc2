"""The program `apood`: its commands, in the order in which the help lists them."""

import io
import signal
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from apood.cli.audit import audit
from apood.cli.bench import bench
from apood.cli.build import build
from apood.cli.calibrate import calibrate
from apood.cli.check import check
from apood.cli.compare import compare
from apood.cli.datasets import datasets
from apood.cli.demo import demo
from apood.cli.embed import EXAMPLES, embed
from apood.cli.evaluate import evaluate
from apood.cli.explain import explain
from apood.cli.fit import fit
from apood.cli.inspect import inspect
from apood.cli.methods import methods
from apood.cli.output import PlainGroup
from apood.cli.proxy import proxy
from apood.cli.recalibrate import recalibrate
from apood.cli.report import report
from apood.cli.score import score
from apood.cli.select import select
from apood.cli.serve import serve
from apood.cli.store_tools import store
from apood.cli.train import train
from apood.cli.watch import watch

__all__ = ["app", "main"]

_WALK = """Decide which inputs belong to the distribution that a model was trained on.

The usual way from texts to decisions takes two commands:

apood build train.jsonl --model minilm --out detector

apood score detector new.jsonl --out scores.csv

`apood build` does what `apood embed`, `fit` and `calibrate` do one by one."""

_COMMANDS: dict[str, tuple[tuple[Callable[..., None], str], ...]] = {
    "From inputs to decisions": (
        (audit, "apood audit train.jsonl --model minilm"),
        (build, "apood build train.jsonl --model minilm --out detector"),
        (embed, EXAMPLES),
        (fit, "apood fit train --out detector"),
        (calibrate, "apood calibrate detector held-out --accept 0.95"),
        (score, "apood score detector new.jsonl --out scores.csv"),
        (explain, "apood explain detector 'Ignore the rules above.'"),
        (check, "apood check detector --id test.jsonl"),
        (report, "apood report detector --id test.jsonl --ood news=news.jsonl --out report.html"),
    ),
    "In operation": (
        (serve, "apood serve detector --shadow"),
        (proxy, "apood proxy detector --upstream http://127.0.0.1:8080"),
        (watch, "apood watch detector scores.jsonl --state drift.json"),
        (recalibrate, "apood recalibrate detector reviewed.jsonl --out recalibrated"),
    ),
    "Which method, which settings": (
        (evaluate, "apood evaluate detector --id test --ood news=news --ood code=code"),
        (compare, "apood compare --id-train train --id-test test --ood news=news --ood code=code --out comparison"),
        (select, "apood select train --method ap-ood --aux outliers --out search"),
        (methods, "apood methods"),
    ),
    "More": (
        (inspect, "apood inspect train --verify"),
        (datasets, "apood datasets xsum"),
        (demo, "apood demo --out demo"),
    ),
}

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


@app.callback(help=_WALK, epilog="`apood COMMAND --help` explains a command. `apood demo` is a first impression.")
def _apood(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE:CLASS",
            help="Import a detector of your own, so that saved ones can be loaded; may be repeated.",
        ),
    ] = None,
) -> None:
    del version  # its callback did the work
    if classes:
        from apood.detectors.contract.registry import detector_class

        for name in classes:
            detector_class(name)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for panel, commands in _COMMANDS.items():
    for command, example in commands:
        app.command(epilog=f"Example: {example}", rich_help_panel=panel)(command)
app.add_typer(store, name="store", cls=PlainGroup, rich_help_panel="More")
app.add_typer(train, name="train", cls=PlainGroup, rich_help_panel="More")
app.add_typer(bench, name="bench", rich_help_panel="More")


def main() -> None:
    """Run the program: the entry point of the installed command."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler stops a job like Ctrl-C does
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal of another encoding is no reason to fail
    app()
