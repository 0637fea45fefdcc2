"""A grid of results as one HTML file that needs nothing else."""

from typing import Any

from apood.report.grid import Figure, Grid
from apood.support.checks import import_optional

__all__ = ["html_table", "refuse_without_jinja"]

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<style>
:root { --ink: #1d1d1f; --faint: #6e6e73; --paper: #fff; --line: #d2d2d7; --shade: #f5f5f7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #f5f5f7; --faint: #98989d; --paper: #161618; --line: #3a3a3c; --shade: #222225; }
}
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: var(--ink); background: var(--paper);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.3rem; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .8rem; text-align: right; vertical-align: top; white-space: nowrap; }
th:first-child, tbody th { text-align: left; }
thead th { border-bottom: 1.5px solid var(--ink); vertical-align: bottom; white-space: normal; }
tbody th { font-weight: 500; }
tbody tr { border-bottom: 1px solid var(--line); }
tbody tr:hover { background: var(--shade); }
tr.block th { color: var(--faint); font-style: italic; padding-top: 1rem; }
.below { display: block; color: var(--faint); font-size: .87em; }
b { font-weight: 650; color: var(--ink); }
u { text-underline-offset: .2em; }
p { color: var(--faint); font-size: .9em; max-width: 60rem; }
</style>
<h1>{{ title }}</h1>
<div>
<table>
<thead>
<tr><th scope="col">method</th>{% for column in grid.columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr>
</thead>
<tbody>
{% for block in grid.blocks -%}
{% if block.title -%}
<tr class="block"><th colspan="{{ grid.columns | length + 1 }}" scope="rowgroup">{{ block.title }}</th></tr>
{% endif -%}
{% for method in block.methods -%}
<tr><th scope="row">{{ method }}</th>
{%- for column in grid.columns -%}
<td>{% for figure in grid.cells.get((method, column), absent) -%}
<span{% if not loop.first %} class="below"{% endif %}>
{%- if figure.mark == "best" %}<b>{{ figure.text }}</b>
{%- elif figure.mark == "second" %}<u>{{ figure.text }}</u>
{%- else %}{{ figure.text }}{% endif -%}
</span>
{%- endfor %}</td>
{%- endfor %}</tr>
{% endfor -%}
{% endfor -%}
</tbody>
</table>
</div>
{% for note in grid.notes -%}
<p>{{ note }}</p>
{% endfor -%}
<p>{{ grid.legend }}</p>
</html>
"""


def html_table(grid: Grid, title: str) -> str:
    """The page, in light or dark colours as the reader's system has it."""
    page: str = _environment().from_string(_PAGE).render(grid=grid, title=title, absent=(Figure("–"),))
    return page


def refuse_without_jinja() -> None:
    """Says what is missing before any work is done for a page."""
    _environment()


def _environment() -> Any:
    jinja2 = import_optional("jinja2", "report", "An HTML table")
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
