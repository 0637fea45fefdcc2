"""Options keep their names under every version of typer."""

import re
from pathlib import Path

import apood.cli

_PARAMETER = re.compile(r"\n    (\w+): Annotated\[(.*?)(?=\n    \w+: Annotated\[|\n\) ->)", re.DOTALL)


def test_an_option_whose_placeholder_is_its_own_name_is_named_in_full():
    """Some versions of typer take `size: Option(metavar="SIZE")` for an option called --SIZE."""
    clashes = [
        f"{path.name}: {name}"
        for path in Path(apood.cli.__file__).parent.glob("*.py")
        for name, declared in _PARAMETER.findall(path.read_text(encoding="utf-8"))
        if "typer.Option(" in declared
        and f'metavar="{name.upper()}"' in declared
        and f'"--{name.replace("_", "-")}' not in declared
    ]
    assert clashes == []
