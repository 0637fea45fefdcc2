"""`apood bench`: the experiments of the paper."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.bench_runtime import runtime
from apood.cli.output import PlainGroup, advise_on_interrupt, print_facts, print_json
from apood.experiments.paper.catalogue import CATALOGUE
from apood.support.checks import suggest_name
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.experiments.paper.findings import Findings

__all__ = ["bench"]

_OTHERS = {"toy": "figures 1 and 2", "runtime": "table 11 and figures 7 to 10"}
_ANY = "NAME"


class _Experiments(PlainGroup):
    """One command for all experiments that are declared: it is known by the name of each."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, which many experiments share."""
        found = super().get_command(ctx, _ANY if cmd_name in CATALOGUE else cmd_name)
        if found is None:
            known = [*_OTHERS, *CATALOGUE]
            raise InputError(
                f"There is no experiment {cmd_name!r}{suggest_name(cmd_name, known)}; there are {', '.join(known)}."
            )
        return found


class ProfileName(StrEnum):
    """Whose data."""

    paper = "paper"
    local = "local"


class RecipeName(StrEnum):
    """How AP-OOD is fitted."""

    paper = "paper"
    robust = "robust"


bench = typer.Typer(cls=_Experiments, help="Runs an experiment of the paper.", invoke_without_command=True)


@bench.callback()
def _bench(context: typer.Context) -> None:
    """Runs an experiment of the paper; without a name it lists them."""
    if context.invoked_subcommand is None:
        shown = {name: f"{listed.shows}: {listed.about}" for name, listed in CATALOGUE.items()}
        print_facts({**_OTHERS, **shown})
        typer.echo("\nRun one with `apood bench NAME --data DIR --model FOLDER`, or with `--profile paper`;")
        typer.echo("`--dry-run` says what it would do.")


@bench.command(epilog="Example: apood bench toy --out toy")
def toy(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the figures and results.json.")] = Path("toy"),
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the data and of the training.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the content of results.json.")] = False,
) -> None:
    """The toy experiment: averaging hides an anomaly that attention finds (figures 1 and 2 of the paper)."""
    from apood.experiments.toy import run_toy

    results = run_toy(out, seed)
    if as_json:
        print_json(results)
    else:
        print_facts(results | {"written to": out})


@bench.command(_ANY, epilog="Example: apood bench summarization --data my-texts --model ./model --out bench")
def named(
    context: typer.Context,
    profile: Annotated[
        ProfileName,
        typer.Option(
            "--profile",
            metavar="PROFILE",
            help="paper: the paper's model and data sets, in its sizes; local: a folder of files and any model.",
        ),
    ] = ProfileName.local,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with apood-data.toml; with --profile paper that of the sets which are downloaded by hand.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="ID_OR_FOLDER", help="A model folder, or a hub id.", show_default="the paper's"),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="How many splits.", show_default="as in the paper: 5")
    ] = None,
    recipe: Annotated[
        RecipeName,
        typer.Option(
            "--recipe",
            metavar="RECIPE",
            help="paper: its settings, chosen from its grid on AUX sequences; robust: the defaults of apood.",
        ),
    ] = RecipeName.paper,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="SET", help="Leave an OOD set out; may be repeated.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for stores, fits and results; experiments may share it.")
    ] = Path("bench"),
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="How many fits at once.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the content of results.json, or the plan.")] = False,
) -> None:
    """A table or figure of the paper, on its data or on yours; `apood bench` lists them.

    What will be embedded and fitted is told first. Everything is kept: the same command goes on after an interruption,
    and experiments with the same --out share stores and fits.
    """
    from apood.experiments.paper.run import Options, prepare

    options = Options(
        profile=profile.value,
        data=data,
        model=model,
        seeds=seeds,
        recipe=recipe.value,
        skip=skip or (),
        out=out,
        jobs=jobs,
    )
    prepared = prepare(str(context.info_name), options, dry_run=dry_run)
    if dry_run and as_json:
        print_json(prepared.plan.facts)
    elif not as_json:
        print_facts({"experiment": prepared.title, **prepared.plan.facts})
    if dry_run:
        return
    with advise_on_interrupt(lambda: f"what is done lies in {out}; run the same command again to go on."):
        findings, written = prepared.carry_out()
    if as_json:
        print_json(findings.as_json())
        return
    _show(findings)
    typer.echo(f"\nWritten to {prepared.folder}: {', '.join(path.name for path in written)}.")


def _show(findings: "Findings") -> None:
    from rich.console import Console

    from apood.report.tables import TerminalTable

    console = Console(highlight=False)
    for table in findings.tables:
        console.print(TerminalTable(table.grid, table.heading))
    for claim in findings.claims:
        because = f" ({claim.because})" if claim.because else ""
        console.print(f"{claim.sentence}: {claim.verdict}{because}", markup=False, soft_wrap=True)


bench.command(epilog="Example: apood bench runtime --profile paper --out runtime")(runtime)
