"""`apood datasets`."""

from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.output import print_facts, print_json
from apood.support.checks import suggest_name
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.data.presets import Preset

__all__ = ["datasets"]


def datasets(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Say all about this one.", show_default="list them all")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects, or the one object.")] = False,
) -> None:
    """Lists the data sets of the paper, which commands that take texts know by name.

    As an input write NAME:SPLIT where the set is on the Hugging Face hub, else NAME:PATH with what you downloaded.
    """
    from apood.data.presets import PRESETS

    if name is None:
        if as_json:
            print_json([_facts(preset) for preset in PRESETS.values()])
        else:
            _print_table()
        return
    name = name.partition(":")[0]
    if name not in PRESETS:
        raise InputError(
            f"There is no data set {name!r}{suggest_name(name, PRESETS)} among those of the paper: "
            f"there are {', '.join(PRESETS)}."
        )
    facts = _facts(PRESETS[name])
    if as_json:
        print_json(facts)
    else:
        print_facts({key.replace("_", " "): value for key, value in facts.items() if value})


def _facts(preset: "Preset") -> dict[str, Any]:
    where = preset.where.partition(",")[0]
    return {
        "name": preset.name,
        "input": preset.usage,
        "stands_for": preset.given.replace("{}", where),
        "about": preset.about,
        "experiment": preset.experiment,
        "role": preset.role,
        "where": preset.where,
        "field": preset.field,
        "target": preset.target,
        "needs": preset.needs,
        "how_to_get_it": preset.get or None,
        "not_verified": preset.unsure or None,
    }


def _print_table() -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from apood.data.presets import PRESETS

    console = Console(highlight=False)
    for experiment, presets in groupby(PRESETS.values(), key=lambda preset: preset.experiment):
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), title=experiment, title_justify="left")
        table.add_column(no_wrap=True, min_width=max(len(preset.usage) for preset in PRESETS.values()))
        table.add_column(no_wrap=True, min_width=3)
        table.add_column(overflow="fold")
        for preset in presets:
            name, colon, where = preset.usage.partition(":")
            facts = [f"{preset.hub_id} ({preset.where})"] if preset.hub_id else []
            facts.append(f"field {preset.field}")
            if preset.get:
                facts.append(f"needs {preset.needs}")
            lines = Text.assemble(preset.about, "\n", (", ".join(facts), "dim"))
            table.add_row(Text.assemble((name, "bold"), colon, where), preset.role, lines)
        console.print(table)
        console.print()
    console.print(Text("apood datasets NAME says how one is had, and what is not certain about it.", style="dim"))
