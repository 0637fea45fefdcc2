"""`apood bench runtime`."""

from pathlib import Path
from typing import Annotated

import typer

from apood.cli.output import advise_on_interrupt, echo, print_facts, print_json
from apood.support.errors import InputError

__all__ = ["runtime"]


def runtime(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for results, tables and figures.")] = Path("runtime"),
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of a text model; by default PEGASUS with random weights, large on a GPU, small on a CPU.",
        ),
    ] = None,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="paper: the paper's sizes; local: sizes that take about a minute.")
    ] = "local",
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="cpu or cuda; by default a GPU if there is one.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of random weights and batches.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: a first look within seconds.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be measured, and how long it takes.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing results.")] = False,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Measure nothing; redraw tables and figures from the results in --out.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the content of results.json.")] = False,
) -> None:
    """Measure the time of detectors and of the model (table 11, figures 7 to 10).

    The same command continues after an interruption. Complete results are replaced only with --force.
    """
    from apood.experiments.runtime import MANIFEST, RESULTS, measure, plan_runtime
    from apood.experiments.runtime_report import read_manifest, read_results, write_report

    if redraw:
        results = read_results(out / RESULTS)
    else:
        if (out / RESULTS).exists() and not (force or dry_run):
            raise InputError(
                f"There are already results in {out}: choose another folder, replace them with --force, or redraw them "
                "with --redraw."
            )
        plan = plan_runtime(model, profile, device, seed, quick=quick)
        if dry_run:
            print_json(plan.facts) if as_json else print_facts(plan.facts)
            return
        if not as_json:
            print_facts(plan.facts)
        with advise_on_interrupt(lambda: f"what is measured is in {out}; run the same command again to continue."):
            results = measure(plan, out)
    written = write_report(results, read_manifest(out / MANIFEST), out)
    if as_json:
        print_json(results)
    else:
        echo()
        echo((out / "table11.md").read_text(encoding="utf-8"))
        print_facts({"written to": out, "figures": ", ".join(path.name for path in written if path.suffix == ".png")})
