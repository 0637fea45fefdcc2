"""`apood audit`."""

from typing import Annotated

import typer

from apood.cli.arguments import open_store
from apood.cli.options import AsJson, CacheFolder, NoVerify, TextField, TextModel
from apood.cli.output import echo, print_json, print_table
from apood.cli.stores import StoreFinder
from apood.support.checks import format_count

__all__ = ["audit"]


def audit(
    inputs: Annotated[
        str,
        typer.Argument(
            metavar="STORE_OR_TEXTS", help="In-distribution inputs to learn from: texts, or their token store."
        ),
    ],
    model: TextModel = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many inputs to list.")] = 20,
    field: TextField = None,
    cache: CacheFolder = None,
    no_verify: NoVerify = False,
    as_json: AsJson = False,
) -> None:
    """List the training inputs that fit the others least, to find foreign ones before a detector learns from them.

    A detector takes all that it learns from for in-distribution. A few foreign texts among many are enough to make it
    accept others of their kind. Look through the list, remove what does not belong, and build the detector.

    Inputs are compared with their nearest neighbours; nothing is trained. An ordinary input has a score of about 0, and
    a long one of several windows a lower score. INDEX counts from 0. `apood build` uses the texts that this command has
    embedded.
    """
    import numpy as np
    from rich.table import Table
    from rich.text import Text

    from apood.detectors.fusion import default_detector
    from apood.evaluation.audit import audit as score_each
    from apood.explain.visible import make_visible
    from apood.pipeline.copies import keeps_texts, read_texts

    stores = StoreFinder.of_model(model, cache, field)
    source = open_store(stores.find(inputs), default_detector(), verify=not no_verify)
    stores.refuse_unused_options()
    scores = score_each(source)
    lowest = scores.argsort(kind="stable")[:top]
    texts: dict[int, str] = {}
    if keeps_texts(source):
        ascending = sorted(lowest)
        texts = dict(zip(ascending, read_texts(source, np.array(ascending)), strict=True))
    if as_json:
        rows = [
            {"index": int(index), "score": float(scores[index])} | ({"text": texts[index]} if texts else {})
            for index in lowest
        ]
        print_json({"inputs": len(scores), "lowest": rows})
        return
    table = Table("INDEX", "SCORE", *(["TEXT"] if texts else []), box=None, padding=(0, 2, 0, 0))
    for index in lowest:
        shown = [Text(make_visible(" ".join(texts[index].split())), overflow="ellipsis", no_wrap=True)] if texts else []
        table.add_row(f"{index}", f"{scores[index]:.1f}", *shown)
    echo(f"Of {format_count(len(scores), 'input')}, these fit the others least:\n")
    print_table(table)
    echo("\nRemove those that do not belong, then build the detector.")
