"""The page of a report: one HTML file that loads nothing, runs no script, and can be read on a phone and on paper."""

import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from apood.detectors.contract.held_out import FAR
from apood.explain.html import STYLE, make_policy, render_body
from apood.explain.text_explanation import TextExplanation
from apood.explain.visible import make_visible
from apood.pipeline.seen import Seen
from apood.report.page.svg import COLOURS, draw_distributions, draw_lengths, draw_roc, draw_share, draw_training
from apood.support.checks import format_count, import_optional

__all__ = ["render_report"]

_STYLE = """
body { margin: 0; }
main { max-width: 50rem; margin: 0 auto; padding: 1rem; box-sizing: border-box; min-height: 100vh; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h3 { font-size: 1rem; margin: 1.5rem 0 0; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line); }
.under { color: var(--faint); margin-top: .25rem; } .verdict { font-size: 1.1rem; }
.findings { color: var(--bad); background: var(--bad-tint); border-radius: .4rem; padding: .25rem 1rem .5rem;
  margin: 1.5rem 0; }
.findings h2 { font-size: 1rem; margin: .5rem 0 0; padding: 0; border: 0; } .findings ul { margin: .25rem 0; }
.findings ul { padding-left: 1.1rem; }
svg { width: 100%; max-width: 36rem; height: auto; font: 13px system-ui, sans-serif; } .square { max-width: 24rem; }
svg text { fill: var(--ink); } svg .label { fill: var(--faint); }
.bar { white-space: nowrap; }
svg.share { width: 4.5rem; height: .5rem; vertical-align: .05rem; background: var(--line); border-radius: .25rem; }
.axis { stroke: var(--line); fill: none; } .chance { stroke: var(--line); stroke-dasharray: 4; }
.threshold { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 5 3; }
.fill { fill: var(--set); } .line { stroke: var(--set); fill: none; stroke-width: 2; }
.dots { stroke: var(--set); stroke-width: 4.5; stroke-linecap: round; stroke-opacity: .6; fill: none; }
.key { display: inline-block; width: .7rem; height: .7rem; border-radius: .15rem; background: var(--set); }
.s0 { --set: #2f6fb5; } .s1 { --set: #d1662a; } .s2 { --set: #3f8f4f; } .s3 { --set: #b2436e; }
.s4 { --set: #8a6fc0; } .s5 { --set: #8f7a2a; } .s6 { --set: #2f9aa0; } .s7 { --set: #7d7d88; }
@media screen and (prefers-color-scheme: dark) { .s0 { --set: #6ea8ea; } .s1 { --set: #f0894d; } .s2 { --set: #64b878; }
  .s3 { --set: #e0709c; } .s4 { --set: #ab92e0; } .s5 { --set: #c2a948; } .s6 { --set: #4fc0c6; }
  .s7 { --set: #a3a3ae; } }
td:first-child { min-width: 5.5rem; }
.chosen { font-weight: 600; }
.facts { display: grid; grid-template-columns: 9rem 1fr; gap: .3rem 1rem; font-size: .9rem; }
.facts dt { color: var(--faint); } .facts dd { margin: 0; } .facts .code, pre { font-family: ui-monospace, monospace; }
.facts .code { font-size: .85rem; } pre { white-space: pre-wrap; background: var(--shade); border-radius: .4rem;
  padding: .75rem 1rem; font-size: .85rem; }
.apood { --shade: #f4f4f7; } @media screen and (prefers-color-scheme: dark) { .apood { --shade: #222229; } }
section { break-inside: avoid; }
@media (max-width: 30rem) { .facts { display: block; } .facts dt { margin-top: .5rem; }
  .apood th, .apood td { padding-right: .55rem; } svg.share { display: none; } }
@media print { main { max-width: none; padding: 0; } .wide { overflow: visible; } }
"""


def render_report(report: Mapping[str, Any], explanations: Sequence[TextExplanation]) -> str:
    """Return the page.

    Args:
        report: the content, as `summarise` returns it.
        explanations: the explanations of `report["foreign"]`.
    """
    jinja2 = import_optional("jinja2", "report", "An HTML page")
    template = files("apood.report.page").joinpath("report.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, finalize=_show, trim_blocks=True, keep_trailing_newline=True
    )
    environment.globals.update(number=_format_number, estimate=_format_estimate, share=draw_share, seen=_describe_seen)
    style, threshold = STYLE + _STYLE, report["calibration"]["threshold"]
    numbers = {one["name"]: number for number, one in enumerate(report["sets"])}
    bodies = map(render_body, explanations)
    page: str = environment.from_string(template).render(
        report=report,
        colours=COLOURS,
        numbers=numbers,
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


def _describe_seen(facts: Mapping[str, Any]) -> str:
    """Return the numbers of the texts of a fit or a calibration in words."""
    seen = Seen.from_json(facts)
    inputs, tokens = format_count(seen.documents, "input"), format_count(seen.tokens, "token")
    windows = f" in {format_count(seen.sequences, 'window')}" if seen.sequences != seen.documents else ""
    return f"{inputs}{windows}, {tokens}; 98% have {seen.short:,} to {seen.long:,} tokens; {seen.date}"


def _format_number(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:,.4g}"


def _format_estimate(estimate: Sequence[float]) -> str:
    value, low, high = (100 * number for number in estimate)
    return f"{value:.1f} ({low:.1f} to {high:.1f})"
