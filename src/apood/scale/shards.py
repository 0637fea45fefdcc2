"""Shards: one Parquet file per unit, with the rows of its documents. A unit is done when its shard is there.

Ray Data has checkpoints of its own (`CheckpointConfig`), which do not serve here. They remember the identifiers of rows
that were written, and filter these rows out after reading, so that the rows that are left are batched with other
neighbours: the last digits of their scores would change. They need a column of unique identifiers, which texts do not
have, and a pipeline that ends in one of Ray's own writers, which name their files at random and write no token stores.
So a worker commits each unit itself: the file is written under another name, flushed and renamed. It holds nothing that
depends on time, place or worker. A unit that is done twice, by a worker that was thought dead, gives the same bytes.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from apood.data.record import BadRecord, make_sentence
from apood.support.background import map_concurrently
from apood.support.cloud import Place, list_names, write_file
from apood.support.errors import InputError
from apood.support.files import atomic_file, replace_half_pairs

__all__ = [
    "Counts",
    "Row",
    "commit_file",
    "find_committed",
    "list_finished",
    "read_counts",
    "read_errors",
    "shard_path",
    "write_shard",
]

Row = Mapping[str, Any]

_SHARD = re.compile(r"rows-(\d{6,})-(\d{5,})\.parquet")
_KEY = b"apood"
_TYPES = {
    "score": "float64", "p_value": "float64", "decision": "string", "tokens": "int32", "windows": "int32",
    "truncated": "bool_", "note": "string", "error": "string",
}  # fmt: skip


@dataclass
class Counts:
    """Numbers about the rows of a unit, or of many.

    Attributes:
        rows: the number of rows: all documents, bad ones too.
        bad: the number of documents that could not be used.
        damaged: the number of parts of inputs that were read only up to where they are damaged.
        given_up: the number of parts of inputs that were read only up to where each worker that tried it died.
        ood: the number of decisions OOD.
        tokens: the number of tokens.
        sequences: the number of sequences: documents, or windows of long ones.
        long: the number of documents with several windows.
        cut: the number of documents of which only the beginning was used.
        empty: the number of documents in which there was nothing to score.
        too_long: the number of documents that were too long to be scored.
    """

    rows: int = 0
    bad: int = 0
    damaged: int = 0
    given_up: int = 0
    ood: int = 0
    tokens: int = 0
    sequences: int = 0
    long: int = 0
    cut: int = 0
    empty: int = 0
    too_long: int = 0

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Self:
        """Return the numbers of these rows."""
        found = cls()
        for row in rows:
            found.rows += 1
            found.bad += row.get("error") is not None
            found.ood += row.get("decision") == "OOD"
            windows = row.get("windows") or 0
            found.tokens += row.get("tokens") or 0
            found.sequences += windows
            found.long += windows > 1
            found.cut += bool(row.get("truncated"))
            found.empty += bool(row.get("empty"))
            found.too_long += row.get("windows") == 0
        return found

    def add(self, other: "Counts") -> None:
        """Add the numbers of other rows."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def shard_path(folder: Place, name: str) -> Place:
    """Return the file or object of the unit of this name."""
    return folder / f"rows-{name}.parquet"


def commit_file(path: Place) -> AbstractContextManager[Path]:
    """Return a context manager that yields a temporary path; without an error, its file is then at `path`, in one step.

    On a disk, a job sweeps once, at its end. In a cloud store, an object appears when all of it is there.
    """
    return atomic_file(path, sweep=False) if isinstance(path, Path) else write_file(path)


def write_shard(
    path: Place,
    rows: Sequence[Row],
    columns: Sequence[str],
    kept: Sequence[str],
    *,
    last: bool,
    damaged: bool = False,
    given_up: bool = False,
) -> Counts:
    """Write the rows of a unit in one step, and return their counts.

    Args:
        path: the file or object.
        rows: the rows; a column that a row lacks is null in it.
        columns: the names of the columns of apood.
        kept: the names of the fields that are kept, as texts: values of other kinds as JSON, so that all shards have
            the same columns.
        last: whether the unit is the last one of its part.
        damaged: whether it is the last one because the input is damaged.
        given_up: whether it is the last one because each worker that tried to read on died.
    """
    import pyarrow
    import pyarrow.parquet

    counts = replace(Counts.of(rows), damaged=int(damaged), given_up=int(given_up))
    about = json.dumps({**asdict(counts), "last": last})
    schema = pyarrow.schema(
        [("place", pyarrow.string())]
        + [(name, pyarrow.string()) for name in kept]
        + [(name, getattr(pyarrow, _TYPES[name])()) for name in columns],
        metadata={_KEY: about},
    )
    texts = [{**row, **{name: _as_text(row.get(name)) for name in kept}} for row in rows]
    with commit_file(path) as temporary:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(texts, schema), temporary, compression="zstd")
    return counts


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return str(replace_half_pairs(text))


def read_counts(path: Place) -> tuple[Counts, bool]:
    """Return the counts of a shard, and whether its unit is the last one of its part."""
    import pyarrow

    try:
        about = json.loads(_read_schema(path).metadata[_KEY])
        last = bool(about.pop("last"))
        return Counts(**about), last
    except (pyarrow.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged, or apood did not write it ({error}): delete it.") from error


def read_errors(folder: Place, most: int) -> list[BadRecord]:
    """Return the first documents of the shards in a folder that could not be used, at most so many."""
    import pyarrow.parquet

    found: list[BadRecord] = []
    paths = [path for own in find_committed(folder).values() for path in own]
    for path, (counts, _) in zip(paths, map_concurrently(read_counts, paths), strict=True):
        if len(found) == most:
            break
        if counts.bad:
            with _open(path) as file:
                rows = pyarrow.parquet.read_table(file, columns=["place", "error"]).to_pylist()
            found += [BadRecord(row["place"], _name_place(**row)) for row in rows if row["error"] is not None]
            del found[most:]
    return found


def _name_place(place: str, error: str) -> str:
    """Return an error with the place of its document. Those of workers do not name it."""
    return error if place.lower() in error.lower() else make_sentence(f"{place}: {error.rstrip('.')}")


def _read_schema(path: Place) -> Any:
    """Return the schema of a shard. A cloud store that does not give it raises CloudError: the shard may be good."""
    import pyarrow.parquet

    with _open(path) as file:
        return pyarrow.parquet.read_schema(file)


@contextmanager
def _open(path: Place) -> Iterator[Any]:
    """Yield a shard as something that pyarrow reads at any place."""
    if isinstance(path, Path):
        yield path
        return
    with path.explain_errors("read"), path.open_anywhere() as file:
        yield file


def find_committed(folder: Place) -> dict[int, list[Place]]:
    """Return the shards in a folder by the numbers of their parts, each part in the order of its units."""
    found: dict[int, list[Place]] = {}
    matches = [match for name in list_names(folder) if (match := _SHARD.fullmatch(name))]
    for match in sorted(matches, key=lambda match: (int(match[1]), int(match[2]))):
        found.setdefault(int(match[1]), []).append(folder / match[0])
    return found


def list_finished(committed: Mapping[int, Sequence[Place]]) -> set[int]:
    """Return the parts of which all units are committed."""
    gapless = [part for part, paths in committed.items() if _number_units(paths) == list(range(len(paths)))]
    ends = map_concurrently(read_counts, [committed[part][-1] for part in gapless])
    return {part for part, (_, last) in zip(gapless, ends, strict=True) if last}


def _number_units(paths: Sequence[Place]) -> list[int]:
    return [int(_SHARD.fullmatch(path.name)[2]) for path in paths]  # type: ignore[index]
