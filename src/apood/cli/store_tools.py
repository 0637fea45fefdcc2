"""`apood store`: token stores merged, split, verified and measured."""

from dataclasses import asdict
from typing import Annotated

import typer

from apood.cli.options import AsJson, AsJsonLines
from apood.cli.output import echo, print_json, write_rows
from apood.support.checks import format_count
from apood.support.errors import InputError, StoreError

__all__ = ["store"]

Stores = Annotated[list[str], typer.Argument(metavar="STORE", help="Folders of token stores.")]

store = typer.Typer(no_args_is_help=False)


@store.callback()
def _store() -> None:
    """Merge, split, verify or measure token stores."""


@store.command(epilog="Example: apood store merge part-1 part-2 part-3 --out train")
def merge(
    folders: Annotated[list[str], typer.Argument(metavar="STORE", help="Token stores, two or more.")],
    out: Annotated[str, typer.Option(metavar="STORE", help="Folder of the token store to write.")],
    as_json: AsJson = False,
) -> None:
    """Write the sequences of several token stores to one, in the order given.

    The result is the store that one `apood embed` of all texts would have written. The stores must have one encoder,
    one dtype and the same channels. All hashes are checked. The new store is complete, or nothing is written.

    A document that several stores hold is written once for each of them. Only a store that is given twice is refused.
    """
    from apood.tokens.joining import merge_stores

    merged = merge_stores(folders, out)
    if as_json:
        print_json({"store": out, "sequences": len(merged), "tokens": merged.tokens, "merged": len(folders)})
        return
    echo(f"Merged {format_count(len(merged), 'sequence')} of {len(folders)} token stores into {out}.")


@store.command(epilog="Example: apood store split all --part train=0.8 --part held-out=0.2 --out parts")
def split(
    folder: Annotated[str, typer.Argument(metavar="STORE", help="Folder of a token store.")],
    parts: Annotated[
        list[str],
        typer.Option(
            "--part",
            metavar="NAME=SHARE",
            help="Name of a part, and its share of the documents; may be repeated. Shares add up to 1 or less.",
        ),
    ],
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Folder to write the parts to, one token store each.")],
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed that decides which documents a part has.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Split a token store at random into several, without common documents.

    All windows of a long text stay together, and each part keeps the order. All hashes are checked. Either all parts
    are written, or none.
    """
    from apood.tokens.documents import count_documents
    from apood.tokens.joining import split_store

    made = split_store(folder, _parse_parts(parts), out, seed)
    rows = [
        {"store": f"{out}/{name}", "documents": count_documents(part), "sequences": len(part), "tokens": part.tokens}
        for name, part in made.items()
    ]
    write_rows(rows, None, as_json=as_json)


@store.command(epilog="Example: apood store verify train held-out")
def verify(
    folders: Stores,
    as_json: AsJsonLines = False,
) -> None:
    """Read token stores whole and compare the hash of every shard with the index.

    There is a row for each good one. If some cannot be used, the error names each of them.
    """
    from apood.tokens.store import TokenStore

    rows, problems = [], []
    for folder in folders:
        try:
            found = TokenStore(folder)
            found.verify()
        except StoreError as error:
            problems.append(str(error))
            continue
        shards, complete = found.index.shards, not found.index.unfinished
        size = sum(shard.bytes for shard in shards)
        rows.append(
            {"store": folder, "sequences": len(found), "shards": len(shards), "bytes": size, "complete": complete}
        )
    if rows:
        write_rows(rows, None, as_json=as_json)
    if problems:
        stores = format_count(len(folders), "token store")
        raise StoreError(f"{len(problems)} of {stores} cannot be used. {' '.join(problems)}")


@store.command(epilog="Example: apood store stats train held-out")
def stats(
    folders: Stores,
    as_json: AsJsonLines = False,
) -> None:
    """Show numbers about token stores, one row each: counts, lengths, and the norm of the tokens.

    The column not_finite counts tokens with infinite values, which a narrow dtype can cause. The stores are read whole,
    and all hashes are checked.
    """
    from apood.tokens.measuring import StoreStats
    from apood.tokens.store import TokenStore

    rows = [{"store": folder, **asdict(StoreStats.of(TokenStore(folder, channels=[])))} for folder in folders]
    write_rows(rows, None, as_json=as_json)


def _parse_parts(given: list[str]) -> dict[str, float]:
    """Return names and shares from texts such as `train=0.8`."""
    parts: dict[str, float] = {}
    for text in given:
        name, _, share = text.partition("=")
        try:
            value = float(share)
        except ValueError as error:
            raise InputError(f"--part takes NAME=SHARE, as in train=0.8, got {text!r}.") from error
        if name in parts:
            raise InputError(f"Two parts are called {name!r}: give each its own name.")
        parts[name] = value
    return parts
