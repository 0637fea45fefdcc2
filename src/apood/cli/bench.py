"""`apood bench`: the experiments of the paper."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.bench_runtime import runtime
from apood.cli.bench_text import text
from apood.cli.output import PlainGroup, advise_on_interrupt, echo, print_facts, print_json
from apood.experiments.paper.catalogue import CATALOGUE
from apood.support.checks import suggest_name
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.experiments.paper.findings import Findings

__all__ = ["bench"]

_DETAILS = (
    "It first shows what will be embedded and fitted. Everything is kept: the same command continues after an "
    "interruption, and experiments with the same --out share stores and fits."
)
_OTHERS = {
    "toy": "figures 1 and 2",
    "runtime": "table 11 and figures 7 to 10",
    "text": "not of the paper: a benchmark on texts",
}


class _Experiments(PlainGroup):
    """The experiments; an unknown name is refused with a suggestion."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of an experiment."""
        found = super().get_command(ctx, cmd_name)
        if found is None:
            known = [*_OTHERS, *CATALOGUE]
            raise InputError(
                f"There is no experiment {cmd_name!r}{suggest_name(cmd_name, known)}; there are {', '.join(known)}."
            )
        return found


class ProfileName(StrEnum):
    """Whose model and data are used."""

    paper = "paper"
    local = "local"


class RecipeName(StrEnum):
    """How AP-OOD is fitted."""

    paper = "paper"
    reference = "reference"
    robust = "robust"


class BeamsName(StrEnum):
    """How outputs are generated."""

    own = "own"
    greedy = "greedy"


bench = typer.Typer(cls=_Experiments, help="Run an experiment of the paper.", invoke_without_command=True)


@bench.callback()
def _bench(context: typer.Context) -> None:
    """Run an experiment of the paper; without a name, list them."""
    if context.invoked_subcommand is None:
        shown = {name: f"{listed.shows}: {listed.about}" for name, listed in CATALOGUE.items()}
        print_facts({**_OTHERS, **shown})
        echo("\nRun one with `apood bench NAME --data DIR --model FOLDER`, or with `--profile paper`.")
        echo("`--dry-run` shows what it would do.")


@bench.command(epilog="Example: apood bench toy --out toy")
def toy(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the figures and results.json.")] = Path("toy"),
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the data and of the training.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the content of results.json.")] = False,
) -> None:
    """Run the toy experiment: averaging hides an anomaly that attention finds (figures 1 and 2)."""
    from apood.experiments.toy import run_toy

    results = run_toy(out, seed)
    if as_json:
        print_json(results)
    else:
        print_facts(results | {"written to": out})


def run_experiment(
    context: typer.Context,
    profile: Annotated[
        ProfileName,
        typer.Option(
            "--profile",
            metavar="PROFILE",
            help="paper: the paper's model, data sets and sizes; local: a folder of files and any model.",
        ),
    ] = ProfileName.local,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with apood-data.toml; with --profile paper, the folder of sets downloaded by hand.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="ID_OR_FOLDER", help="A model folder, or a hub id.", show_default="the paper's"),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Number of splits.", show_default="the paper's: 5")
    ] = None,
    recipe: Annotated[
        RecipeName,
        typer.Option(
            "--recipe",
            metavar="RECIPE",
            help="paper: the paper's settings, selected from its grid on AUX sequences; reference: the same with the "
            "authors' code; robust: apood's defaults, also for the layers that all methods read.",
        ),
    ] = RecipeName.paper,
    beams: Annotated[
        BeamsName | None,
        typer.Option(
            "--beams",
            metavar="BEAMS",
            help="How outputs are generated: own, with the beams of the model's own settings, or greedy.",
            show_default="own with --profile paper, else greedy",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="SET", help="Leave an OOD set out; may be repeated.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for stores, fits and results; experiments may share it.")
    ] = Path("bench"),
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Number of fits at once.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the content of results.json, or the plan.")] = False,
) -> None:
    """Run an experiment that is declared in the catalogue."""
    from apood.experiments.paper.runner import BenchOptions, prepare

    options = BenchOptions(
        profile=profile.value,
        data=data,
        model=model,
        seeds=seeds,
        recipe=recipe.value,
        beams=None if beams is None else beams.value,
        skip=skip or (),
        out=out,
        jobs=jobs,
    )
    prepared = prepare(str(context.info_name), options, dry_run=dry_run)
    if dry_run and as_json:
        print_json(prepared.cost.facts)
    elif not as_json:
        print_facts({"experiment": prepared.title, **prepared.cost.facts})
    if dry_run:
        return
    with advise_on_interrupt(lambda: f"what is done is in {out}; run the same command again to continue."):
        findings, written = prepared.run()
    if as_json:
        print_json(findings.to_json())
        return
    _show(findings)
    echo(f"\nWritten to {prepared.folder}: {', '.join(path.name for path in written)}.")


def _show(findings: "Findings") -> None:
    from rich.console import Console

    from apood.report.tables import TerminalTable

    console = Console(highlight=False)
    for table in findings.tables:
        console.print(TerminalTable(table.grid, table.heading))
    for claim in findings.claims:
        console.print(f"{claim.sentence}: {claim.verdict}{claim.reason}", markup=False, soft_wrap=True)


bench.add_typer(text, name="text")
bench.command(epilog="Example: apood bench runtime --profile paper --out runtime")(runtime)
for _name, _listed in CATALOGUE.items():
    bench.command(
        _name,
        short_help=f"{_listed.shows[0].upper()}{_listed.shows[1:]}: {_listed.about}.",
        help=f"Run {_name} ({_listed.shows}: {_listed.about}) on the paper's data or on yours.\n\n{_DETAILS}",
        epilog=f"Example: apood bench {_name} --data my-data --model ./model --out bench",
    )(run_experiment)
