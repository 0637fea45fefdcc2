"""The page of a report: one HTML file that loads nothing, runs no script, and can be read on a phone and on paper."""

import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from apood.detectors.contract.held_out import FAR
from apood.explain.html import STYLE, make_policy, render_body
from apood.explain.text_explanation import TextExplanation
from apood.explain.visible import make_visible
from apood.report.page.svg import COLOURS, draw_distributions, draw_lengths, draw_roc, draw_training
from apood.support.checks import import_optional

__all__ = ["refuse_without_jinja", "render_report"]

_STYLE = """
body { margin: 0; }
main { max-width: 50rem; margin: 0 auto; padding: 1rem; box-sizing: border-box; min-height: 100vh; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; } h3 { font-size: 1rem; margin: 1.25rem 0 0; }
svg { width: 100%; max-width: 36rem; height: auto; font: 13px system-ui, sans-serif; } .square { max-width: 24rem; }
svg text { fill: var(--ink); } svg .label { fill: var(--faint); }
.axis { stroke: var(--line); fill: none; } .chance { stroke: var(--line); stroke-dasharray: 4; }
.threshold { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 5 3; }
.fill { fill: var(--set); } .line { stroke: var(--set); fill: none; stroke-width: 2; }
.dots { stroke: var(--set); stroke-width: 3; stroke-linecap: round; stroke-opacity: .55; fill: none; }
.key { display: inline-block; width: .7rem; height: .7rem; border-radius: .15rem; background: var(--set); }
.s0 { --set: #2f6fb5; } .s1 { --set: #d1662a; } .s2 { --set: #3f8f4f; } .s3 { --set: #b2436e; }
.s4 { --set: #8a6fc0; } .s5 { --set: #8f7a2a; } .s6 { --set: #2f9aa0; } .s7 { --set: #7d7d88; }
td:first-child { min-width: 5.5rem; }
.chosen { font-weight: 600; } dt { font-weight: 600; margin-top: .4rem; } dd { margin: 0 0 0 1rem; }
pre { white-space: pre-wrap; } section { break-inside: avoid; }
@media print { main { max-width: none; padding: 0; } .wide { overflow: visible; } }
"""


def refuse_without_jinja() -> None:
    """Raise an error if jinja2 is missing, before the work that ends in a page."""
    import_optional("jinja2", "report", "A report")


def render_report(report: Mapping[str, Any], explanations: Sequence[TextExplanation]) -> str:
    """Return the page.

    Args:
        report: the content, as `summarise` returns it.
        explanations: the explanations of `report["foreign"]`.
    """
    jinja2 = import_optional("jinja2", "report", "A report")
    template = files("apood.report.page").joinpath("report.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, finalize=_show, trim_blocks=True, keep_trailing_newline=True
    )
    environment.globals.update(number=_format_number, estimate=_format_estimate)
    style, threshold = STYLE + _STYLE, report["calibration"]["threshold"]
    numbers = {one["name"]: number for number, one in enumerate(report["sets"])}
    bodies = map(render_body, explanations)
    page: str = environment.from_string(template).render(
        report=report,
        colours=COLOURS,
        far=FAR,
        policy=make_policy(style),
        style=style,
        verdict=_describe_verdict(report),
        distributions=draw_distributions(report["distributions"], threshold),
        roc=draw_roc(report["roc"], numbers),
        lengths=draw_lengths(report["lengths"], numbers, threshold),
        training=[(one, draw_training(one["curve"]) if one["curve"] else "") for one in report["training"]],
        foreign=list(zip(report["foreign"], bodies, strict=True)),
    )
    return page


def _show(value: Any) -> Any:
    """Return a value as it is written into the page: no hidden character of a name gets there."""
    return make_visible(value) if type(value) is str else value  # not a subclass, which is HTML that is safe already


def _describe_verdict(report: Mapping[str, Any]) -> str:
    """Return the most important sentence of the report."""
    known = next(one for one in report["sets"] if one["role"] == "ID")
    said = [
        f"At an accept rate of {report['calibration']['accept']:g}, the detector refuses "
        f"{known['refused'] / known['inputs']:.1%} of the in-distribution inputs"
    ]
    for one in report["sets"]:
        if one["role"] != "ID":
            said.append(f"{one['refused'] / one['inputs']:.1%} of {one['name']}")
    return (", ".join(said[:-1]) + f" and {said[-1]}" if len(said) > 1 else said[0]) + "."


def _format_number(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:,.4g}"


def _format_estimate(estimate: Sequence[float]) -> str:
    value, low, high = (100 * number for number in estimate)
    return f"{value:.1f} ({low:.1f} to {high:.1f})"
