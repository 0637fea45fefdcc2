"""Reading arrays from npz archives in bounded memory: the header of an array decides before any value is read."""

import contextlib
import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from apood.support.files import open_regular

__all__ = ["MOST_ARRAY_BYTES", "MOST_SOUND_BYTES", "Archive", "BadFileError", "open_archive"]

MOST_SOUND_BYTES = 256 << 20
"""The largest size of one sound in memory, in bytes."""

MOST_ARRAY_BYTES = 1 << 30
"""The largest size of an array that is read as a whole, in bytes."""

_ENDING = ".npy"


class BadFileError(Exception):
    """A file cannot be used. The message is the rest of a sentence that begins with its name."""


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator["Archive"]:
    """Open an npz archive; errors in the block that come from its content are raised as BadFileError."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            yield Archive(archive)
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        why = str(error).rstrip(".").splitlines()[:1] or [type(error).__name__]
        raise BadFileError(f"cannot be read as an npz archive ({why[0]})") from error


class Archive:
    """The arrays of an open npz archive. Pickled objects are never read.

    Attributes:
        names: the names of the arrays.
    """

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file
        self.names = [name.removesuffix(_ENDING) for name in file.namelist() if name.endswith(_ENDING)]

    def describe(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return the shape and the dtype of an array, from its header."""
        with self._open(name) as (header, _):
            return header.shape, header.dtype

    def read(self, name: str) -> NDArray[Any]:
        """Return an array."""
        with self._open(name) as (header, file):
            self._refuse_large(header, name)
            values = self._take(file, header.nbytes, name)
        return np.ndarray(header.shape, header.dtype, values, order="F" if header.fortran_order else "C")

    def iterate_rows(self, name: str) -> Iterator[NDArray[Any]]:
        """Yield the rows of an array one after the other. Only one is in memory, unless they are stored by columns."""
        with self._open(name) as (header, file):
            if header.fortran_order:
                yield from self.read(name)
                return
            row = header._replace(shape=header.shape[1:])
            if row.nbytes > MOST_SOUND_BYTES:
                raise BadFileError(
                    f"has rows of {row.nbytes:,} bytes in {name!r}, but the limit for one record is "
                    f"{MOST_SOUND_BYTES >> 20} MiB: split them"
                )
            for _ in range(header.shape[0]):
                yield np.ndarray(row.shape, row.dtype, self._take(file, row.nbytes, name))

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[tuple[_Header, IO[bytes]]]:
        with self._file.open(name + _ENDING) as file:
            header = _read_header(file, name)
            if header.nbytes > self._file.getinfo(name + _ENDING).file_size:
                raise BadFileError(f"has fewer values than the shape {list(header.shape)} of {name!r} needs")
            if not header.nbytes and header.shape[0]:  # a header alone can promise any number of empty rows
                raise BadFileError(f"has no values in the rows of {name!r}, whose shape is {list(header.shape)}")
            yield header, file

    def _refuse_large(self, header: _Header, name: str) -> None:
        if header.nbytes > MOST_ARRAY_BYTES:
            raise BadFileError(
                f"has {header.nbytes:,} bytes in {name!r}, but the limit is {MOST_ARRAY_BYTES >> 20} MiB: split the "
                "archive, or save sounds row by row (np.ascontiguousarray)"
            )

    def _take(self, file: IO[bytes], size: int, name: str) -> bytes:
        values = file.read(size)
        if len(values) != size:
            raise BadFileError(f"ends before all values of {name!r}")
        return values


def _read_header(file: IO[bytes], name: str) -> _Header:
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        header = _Header(*read(file))
    except Exception as error:  # the parser of headers raises errors of many kinds
        raise BadFileError(f"has no proper header of the array {name!r}") from error
    if header.dtype.hasobject or header.dtype.names:
        raise BadFileError(f"cannot be read as an npz archive of plain numbers and texts: {name!r} has objects")
    if any(size < 0 for size in header.shape):
        raise BadFileError(f"has the impossible shape {list(header.shape)} of {name!r}")
    return header
