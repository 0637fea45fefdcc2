"""Texts from Parquet files."""

from collections.abc import Iterator

from apood.data.record import BadRecord, Record
from apood.data.text_fields import TextFields
from apood.support.errors import InputError

__all__ = ["read_parquet"]

_ROWS = 1024


def read_parquet(path: str, fields: TextFields) -> Iterator[Record | BadRecord]:
    """The rows of a file, of which only the columns that are asked for are read."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f"Reading {path!r} needs the package pyarrow: pip install 'apood[hf]'.") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            fields.refuse_absent({field.name: _shape(field.type) for field in schema}, repr(path))
            columns = [name if name in schema.names else name.partition(".")[0] for name in fields.names()]
            number = 0
            for batch in file.iter_batches(_ROWS, columns=list(dict.fromkeys(columns))):
                for row in batch.to_pylist():
                    number += 1
                    yield fields.record(row, f"row {number} of {path!r}")
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path!r} cannot be read as Parquet ({error}).") from error


def _shape(kind: object) -> object:
    """What a value of an Arrow type looks like, as far as fields inside of fields go."""
    import pyarrow

    if not pyarrow.types.is_struct(kind):
        return None
    return {inner.name: _shape(inner.type) for inner in kind}  # type: ignore[attr-defined]
