"""`apood methods`."""

from typing import Annotated, Any

import typer

from apood.cli.arguments import default_parameters, format_parameter
from apood.cli.output import print_json

__all__ = ["methods"]

_AUX_SENTENCES = {"unused": ".", "optional": "; can learn from AUX.", "required": "; must learn from AUX."}


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List the methods: what each one reads, and its parameters with their defaults."""
    listed = _list_methods()
    if as_json:
        print_json(listed)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 1, 0))
    for method in listed:
        needs = f"Reads {', '.join(method['requires'])}" + _AUX_SENTENCES[method["aux"]]
        if method["default"]:
            needs += " This is the default of `apood fit`."
        parameters = "  ".join(f"{name}={format_parameter(value)}" for name, value in method["parameters"].items())
        lines = Text.assemble(method["summary"], "\n", needs, "\n", (parameters or "No parameters.", "dim"))
        table.add_row(Text(method["name"], style="bold"), lines)
    Console(highlight=False).print(table)


def _list_methods() -> list[dict[str, Any]]:
    from apood.detectors.contract.registry import DEFAULT, detector_class, list_methods

    made = {name: detector_class(name)() for name in list_methods()}
    return [
        {
            "name": name,
            "summary": (method.__doc__ or "").strip().partition("\n")[0],
            "requires": sorted(method.requires),
            "aux": method.aux,
            "default": name == DEFAULT,
            "parameters": default_parameters(type(method)),
        }
        for name, method in made.items()
    ]
