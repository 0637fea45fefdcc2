"""Texts from data sets of the Hugging Face hub, or from local folders that are laid out like one."""

import atexit
import contextlib
import gc
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apood.data.record import BadRecord, Record
from apood.data.text_fields import TextFields
from apood.support.errors import InputError

__all__ = ["HubData"]

_FORM = "hf:OWNER/NAME:SPLIT, hf:OWNER/NAME/CONFIG:SPLIT@REVISION or hf:FOLDER:SPLIT"
_EXPORTS = "refs/convert/"
_REACH_SECONDS = 10
_SETTLE_SECONDS = 0.1
Row = Mapping[str, Any]


@dataclass(frozen=True)
class HubData:
    """One split of a data set, streamed: whoever takes a hundred rows does not fetch the rest.

    Attributes:
        given: as the user wrote it.
        path: hub id, or local folder.
        config: which part of a data set that has several.
        split: train, test, ...
        revision: branch, tag or commit; the newest if None.
    """

    given: str
    path: str
    config: str | None
    split: str
    revision: str | None

    @classmethod
    def parse(cls, text: str) -> "HubData":
        """Reads what stands behind `hf:`."""
        given = f"hf:{text}"
        where, _, rest = text.rpartition(":")
        split, at, revision = rest.partition("@")
        if not where or not split or (at and not revision):
            raise InputError(f"A data set of the hub is given as {_FORM}, got {given!r}.")
        folder = Path(where).expanduser()
        if folder.is_dir():
            if revision:
                raise InputError(f"{given!r} names a revision, but {where!r} is a local folder, which has none.")
            return cls(given, str(folder), None, split, None)
        if where.startswith((".", "/", "~")):
            raise InputError(f"There is no folder {where!r} to read {given!r} from.")
        owner, _, rest = where.partition("/")
        name, _, config = rest.partition("/")
        path = f"{owner}/{name}" if name else owner
        return cls(given, path, config or None, split, revision or None)

    def read(self, fields: TextFields) -> Iterator[Record | BadRecord]:
        """The rows in their order."""
        for number, row in enumerate(self._rows(), start=1):
            if number == 1:
                fields.refuse_absent(row, repr(self.given))
            yield fields.record(row, f"row {number} of {self.given!r}")

    def _rows(self) -> Iterator[Row]:
        try:
            import datasets
        except ImportError as error:
            raise InputError(f"Reading {self.given!r} needs the package datasets: pip install 'apood[hf]'.") from error
        if not Path(self.path).is_dir():
            self._refuse_unreachable()
        # The branch that the hub makes by itself has no configurations, but a folder of that name for each.
        exported = (self.revision or "").startswith(_EXPORTS)
        part = {"data_dir" if exported else "name": self.config}
        try:
            with _quiet():
                found = datasets.load_dataset(
                    self.path, split=self.split, revision=self.revision, streaming=True, **part
                )
            rows = iter(found)
            atexit.register(_close, rows)
            yield from rows
        except Exception as error:  # datasets, its readers and the network raise errors of many kinds
            raise self._refusal(error) from error

    def _refuse_unreachable(self) -> None:
        """Asks once: `datasets` itself tries for half a minute, with a line of log for each time."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import OfflineModeIsEnabled

        try:
            HfApi().dataset_info(self.path, revision=self.revision, timeout=_REACH_SECONDS)
        except OfflineModeIsEnabled:
            return  # what is in the cache can be read all the same
        except Exception as error:  # of whichever network library is below
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> InputError:
        kind, message = type(error).__name__, " ".join(str(error).split()).rstrip(".")
        if kind == "GatedRepoError" or "is a gated dataset" in message:
            return InputError(
                f"{self.given!r} is given only to those who agreed to its conditions: do so on the page of "
                f"{self.path!r} on the hub, then log in on this machine with `hf auth login`."
            )
        if "scripts are no longer supported" in message or "trust_remote_code" in message:
            copy = f"'hf:{self._written()}@{_EXPORTS}parquet' may be a copy without code, otherwise "
            return InputError(
                f"{self.given!r} is loaded by code of its own, which is never run: "
                f"{'' if Path(self.path).is_dir() else copy}give the files of the data themselves."
            )
        if kind in ("RepositoryNotFoundError", "RevisionNotFoundError", "HFValidationError", "DatasetNotFoundError"):
            return InputError(
                f"There is no data set for {self.given!r} on the hub that this machine may read ({message}); for a "
                "private one log in with `hf auth login`, for a local folder give its path, as in hf:./folder:train."
            )
        if isinstance(error, ConnectionError) or kind in ("ConnectError", "ConnectTimeout", "ReadTimeout"):
            return InputError(
                f"The Hugging Face hub cannot be reached for {self.given!r} ({message}): without a connection, give "
                "the files themselves, or a local folder with the files of the data set, as in "
                f"hf:./folder:{self.split}."
            )
        return InputError(f"{self.given!r} cannot be read ({message}).")

    def _written(self) -> str:
        return f"{self.path}/{self.config}:{self.split}" if self.config else f"{self.path}:{self.split}"


def _close(rows: Generator[Row, None, None]) -> None:
    """Ends the reading of rows before the process ends.

    The threads that Arrow reads Parquet with abort a process whose interpreter ends while they still hold objects of
    Python, as happens when reading stops early (apache/arrow#45214).
    """
    with contextlib.suppress(ValueError):  # another thread is at it still
        rows.close()
    gc.collect()
    time.sleep(_SETTLE_SECONDS)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars of `datasets` where nobody sees them."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    silence = not sys.stderr.isatty() and not are_progress_bars_disabled()
    if silence:
        disable_progress_bars()
    try:
        yield
    finally:
        if silence:
            enable_progress_bars()
