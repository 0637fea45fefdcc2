"""`apood datasets`."""

from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.options import AsJson
from apood.cli.output import print_facts, print_json
from apood.support.checks import suggest_name
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.data.presets import Preset

__all__ = ["datasets"]


def datasets(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show the details of this set.", show_default="list all sets")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the data sets of the paper, which all commands that read texts know by name.

    Write NAME:SPLIT for a set on the Hugging Face hub, and NAME:PATH for a set that you have downloaded.
    """
    from apood.data.presets import PRESETS

    if name is None:
        if as_json:
            print_json([_collect_facts(preset) for preset in PRESETS.values()])
        else:
            _print_list()
        return
    name = name.partition(":")[0]
    if name not in PRESETS:
        raise InputError(
            f"The paper has no data set {name!r}{suggest_name(name, PRESETS)}: there are {', '.join(PRESETS)}."
        )
    facts = _collect_facts(PRESETS[name])
    if as_json:
        print_json(facts)
    else:
        print_facts({key.replace("_", " "): value for key, value in facts.items() if value})


def _collect_facts(preset: "Preset") -> dict[str, Any]:
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


def _print_list() -> None:
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
    console.print(
        Text("`apood datasets NAME` shows how to get a set, and what could not be verified about it.", style="dim")
    )
