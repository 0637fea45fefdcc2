"""`apood embed`."""

from dataclasses import asdict
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from apood.cli.errors import interrupted_with
from apood.cli.output import print_json
from apood.cli.stores import texts_of
from apood.support.errors import StoreError

__all__ = ["embed"]


class TokenDtype(StrEnum):
    """What a store may keep tokens in."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"


def embed(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT", help="Texts: .jsonl, .csv, .tsv, .txt (each also .gz) or .parquet; - is standard input."
        ),
    ],
    model: Annotated[
        str, typer.Option(metavar="ID_OR_FOLDER", help="A model folder, or a hub id (owner/name@revision).")
    ],
    out: Annotated[Path, typer.Option(metavar="STORE", help="Folder of the token store to write.")],
    field: Annotated[str, typer.Option(metavar="NAME", help="Field or column that holds the text.")] = "text",
    max_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Longer texts are cut here, or at the model's own limit.")
    ] = 512,
    layer: Annotated[
        int, typer.Option(metavar="N", help="Hidden layer to take the tokens from; -1 is the last, 0 the embeddings.")
    ] = -1,
    dtype: Annotated[
        TokenDtype, typer.Option(metavar="DTYPE", help="What tokens are stored in: float16, bfloat16 or float32.")
    ] = TokenDtype.float16,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Take only so many texts.", show_default="all")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a store whose making was interrupted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as an object.")] = False,
) -> None:
    """Turns texts into the token embeddings of a frozen transformer, and writes them to a token store.

    One sequence a text, in the order given; the texts are kept beside their tokens.
    """
    texts = texts_of(inputs, field)
    import torch

    from apood.encoders.embed import embed_to_store
    from apood.encoders.text import TextEncoder
    from apood.tokens.shard import INDEX_FILE, StoreIndex

    if (out / INDEX_FILE).exists() and not resume:
        raise StoreError(f"There is already a token store in {out}: add --resume to go on with it, or delete it first.")

    def kept() -> str:
        if not (out / INDEX_FILE).exists():
            return "nothing was written; run the same command again to start anew."
        count = StoreIndex.read(out).sequences
        return f"{count:,} texts are in {out}; add --resume to the same command to go on behind them."

    with interrupted_with(kept):
        encoder = TextEncoder(model, layer=layer, max_tokens=max_tokens)
        counts = embed_to_store(islice(texts, limit), encoder, out, resume=resume, dtype=getattr(torch, dtype.value))
    if as_json:
        print_json(asdict(counts) | {"store": str(out)})
        return
    facts = [f"{counts.tokens:,} tokens of D={encoder.dim}"]
    if counts.truncated:
        facts.append(f"{counts.truncated:,} cut at {encoder.max_tokens} tokens")
    if counts.empty:
        facts.append(f"{counts.empty:,} without any token, which fitting refuses")
    if counts.skipped:
        facts.append(f"{counts.skipped:,} were there before")
    typer.echo(f"Embedded {counts.sequences:,} texts into {out}: {', '.join(facts)}.")
