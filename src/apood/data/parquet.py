"""Reading texts from Parquet files in bounded memory: a small file may describe far more text than memory holds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apood.data.record import BadRecord, Record, TextFields, make_bad_record
from apood.support.checks import import_optional
from apood.support.cloud import parse_place
from apood.support.errors import InputError

__all__ = ["list_row_groups", "read_parquet"]

_MOST_ROWS, _BATCH_BYTES = 1024, 256 << 20  # read at a time
_MOST_UNPACKED = 100  # times the compressed size, if that is much; texts compress to a tenth


def list_row_groups(path: str) -> list[tuple[int, int]]:
    """Return the number of rows of each row group of a file, and its size in bytes before compression."""
    import_optional("pyarrow", "hf", f"Reading {path!r}")
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(_open(path)) as file:
            metadata = file.metadata
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path!r} cannot be read as Parquet ({error}).") from error
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return [(group.num_rows, group.total_byte_size) for group in groups]


def read_parquet(
    path: str, fields: TextFields, most_bytes: int, groups: tuple[int, int] | None = None
) -> Iterator[Record | BadRecord]:
    """Yield the records of a file; a row of more than `most_bytes` is a bad record.

    Only the columns that hold the fields are read. `groups` are the first row group to read and the one to stop
    before; by default all are read.
    """
    import_optional("pyarrow", "hf", f"Reading {path!r}")
    import pyarrow
    import pyarrow.parquet

    too_long = f"more than {most_bytes >> 20} MiB, the limit for one record: split"
    try:
        with pyarrow.parquet.ParquetFile(_open(path)) as file:
            schema, metadata = file.schema_arrow, file.metadata
            fields.refuse_missing({field.name: _list_fields(field.type) for field in schema}, repr(path))
            fields.refuse_doubled(schema.names, repr(path))
            for name in fields.read:
                _refuse_lists(_find_type(schema, name), name, path)
            first, stop = groups or (0, metadata.num_row_groups)
            number = sum(metadata.row_group(group).num_rows for group in range(first))
            for group in range(first, stop):
                if not (rows := metadata.row_group(group).num_rows):  # as of an empty table
                    continue
                size, compressed = _measure_group(metadata.row_group(group), fields)
                if size > rows * most_bytes:
                    raise InputError(f"The rows of {path!r} have on average {too_long} them.")
                if size > max(_BATCH_BYTES, _MOST_UNPACKED * compressed):
                    raise InputError(
                        f"{path!r} holds {compressed:,} bytes that unpack to {size:,}: more than {_MOST_UNPACKED} "
                        "times as much is not read; write it with smaller row groups."
                    )
                # A value may be as large as the whole group, and all rows may share it.
                step = max(1, min(_MOST_ROWS, _BATCH_BYTES // max(1, size)))
                for batch in file.iter_batches(step, row_groups=[group], columns=list(fields.read)):
                    for row in _iterate_rows(batch, most_bytes):
                        number += 1
                        place = f"row {number} of {path!r}"
                        yield (
                            make_bad_record(place, f"has {too_long} it")
                            if row is None
                            else fields.make_record(row, place)
                        )
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path!r} cannot be read as Parquet ({error}).") from error


def _open(path: str) -> Any:
    """Return a file, or the object at an address, as something that pyarrow reads at any place."""
    place = parse_place(path)
    return place if isinstance(place, Path) else place.open_anywhere()


def _measure_group(group: Any, fields: TextFields) -> tuple[int, int]:
    """Return the sizes of the columns of a row group that hold the fields, in bytes: unpacked and compressed."""
    wanted = tuple(f"{name}." for name in fields.read)
    columns = [group.column(place) for place in range(group.num_columns)]
    columns = [column for column in columns if f"{column.path_in_schema}.".startswith(wanted)]
    unpacked, compressed = (
        sum(getattr(column, f"total_{kind}_size") for column in columns) for kind in ("uncompressed", "compressed")
    )
    return unpacked, compressed


def _list_fields(kind: Any) -> dict[str, Any] | None:
    import pyarrow

    return {inner.name: _list_fields(inner.type) for inner in kind} if pyarrow.types.is_struct(kind) else None


def _find_type(fields: Any, name: str) -> Any:
    """Return the type of a field that exists; dots lead into structs, unless the whole name is that of a field."""
    for field in fields:
        if field.name == name:
            return field.type
    first, _, rest = name.partition(".")
    return _find_type(next(field.type for field in fields if field.name == first), rest)


def _refuse_lists(kind: Any, name: str, path: str) -> None:
    """Raise InputError if a column has lists, whose size is known only when they are in memory."""
    import pyarrow

    if pyarrow.types.is_struct(kind):
        for inner in kind:
            _refuse_lists(inner.type, f"{name}.{inner.name}", path)
    elif pyarrow.types.is_nested(kind):
        raise InputError(f"The column {name!r} of {path!r} holds {kind}; texts and plain values are read, not lists.")


def _iterate_rows(batch: Any, most_bytes: int) -> Iterator[dict[str, Any] | None]:
    """Yield the rows of a batch; None for a row of more than `most_bytes`."""
    if batch.nbytes <= most_bytes:
        yield from batch.to_pylist()
        return
    for place in range(len(batch)):
        row = batch.slice(place, 1)
        yield row.to_pylist()[0] if row.nbytes <= most_bytes else None
