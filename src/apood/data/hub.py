"""Reading texts from data sets of the Hugging Face hub, or from local folders with the same layout."""

import atexit
import contextlib
import gc
import re
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from apood.data.record import BadRecord, Record, TextFields
from apood.support.checks import import_optional
from apood.support.errors import InputError

__all__ = ["HubData"]

_FORM = "hf:OWNER/NAME:SPLIT, hf:OWNER/NAME/CONFIG:SPLIT@REVISION or hf:FOLDER:SPLIT"
_EXPORTS = "refs/convert/"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REACH_SECONDS = 10
_SETTLE_SECONDS = 0.1


@dataclass(frozen=True)
class HubData:
    """One split of a data set. Rows are streamed: reading a hundred rows does not download the rest.

    Attributes:
        given: the input as the user wrote it.
        path: hub id, or local folder.
        config: the configuration of a data set that has several.
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
        """Return the data set that the text after `hf:` names."""
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

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return Path(self.path).is_dir()

    @property
    def is_pinned(self) -> bool:
        """Whether its revision is a commit, which never changes."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    def find_commit(self) -> str | None:
        """Return the commit that the revision is now; None for a folder, and without a connection."""
        return None if self.is_local else self.revision if self.is_pinned else self._ask_hub()

    @property
    def is_exported(self) -> bool:
        """Whether its revision is the branch of Parquet files that the hub generates."""
        return (self.revision or "").startswith(_EXPORTS)

    def measure(self) -> tuple[int, int]:
        """Return the number of files of the split, each of which can be read alone, and the bytes of all its columns.

        The latter is what the data set says about itself; 0 if it says nothing.
        """
        with self._open() as found:
            about = (found.info.splits or {}).get(self.split)
            return int(found.num_shards), int(getattr(about, "num_bytes", 0) or 0)

    def read(self, fields: TextFields, file: int | None = None) -> Iterator[Record | BadRecord]:
        """Yield the records of the rows in order: of all files, or of the one of this number."""
        where = repr(self.given) if not file else f"file {file + 1} of {self.given!r}"
        for number, row in enumerate(self._read_rows(file), start=1):
            if number == 1:
                fields.refuse_missing(row, repr(self.given))
            yield fields.make_record(row, f"row {number} of {where}")

    def _read_rows(self, file: int | None) -> Iterator[Mapping[str, Any]]:
        with self._open() as found:
            rows = iter(found if file is None else found.shard(found.num_shards, file))
            close = partial(_close, rows)
            atexit.register(close)
            yield from rows
            atexit.unregister(close)  # a worker reads many files

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        """Yield the split as a stream. An error in the block is explained."""
        import_optional("datasets", "hf", f"Reading {self.given!r}")
        found = _load_commit(self) if self.is_pinned else self._load()
        try:
            yield found
        except Exception as error:  # datasets, its readers and the network raise errors of many kinds
            raise self._explain(error) from error

    def _load(self) -> Any:
        import datasets

        if not self.is_local:
            self._ask_hub()
        # The branch that the hub generates has no configurations; each has a folder of its name there instead.
        part = {"data_dir" if self.is_exported else "name": self.config}
        try:
            with _hide_progress():
                return datasets.load_dataset(
                    self.path, split=self.split, revision=self.revision, streaming=True, **part
                )
        except Exception as error:
            raise self._explain(error) from error

    def _ask_hub(self) -> str | None:
        """Return the commit of the revision; None in offline mode.

        It raises an error if the hub does not answer. `datasets` would retry for half a minute and log each try.
        """
        import_optional("huggingface_hub", "hf", f"Reading {self.given!r}")
        from huggingface_hub import HfApi
        from huggingface_hub.errors import OfflineModeIsEnabled

        try:
            return HfApi().dataset_info(self.path, revision=self.revision, timeout=_REACH_SECONDS).sha
        except OfflineModeIsEnabled:
            return None  # data sets in the cache can still be read
        except Exception as error:  # the class depends on the network library
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> InputError:
        kind, message = type(error).__name__, " ".join(str(error).split()).rstrip(".")
        if kind == "GatedRepoError" or "is a gated dataset" in message:
            return InputError(
                f"{self.given!r} is only for users who accepted its conditions: accept them on the page of "
                f"{self.path!r} on the hub, then log in on this machine with `hf auth login`."
            )
        if "scripts are no longer supported" in message or "trust_remote_code" in message:
            config = f"/{self.config}" if self.config else ""
            copy = f"try the copy 'hf:{self.path}{config}:{self.split}@{_EXPORTS}parquet', or "
            return InputError(
                f"{self.given!r} is loaded by its own code, which apood never runs: "
                f"{'' if Path(self.path).is_dir() else copy}give the data files themselves."
            )
        if kind in ("RepositoryNotFoundError", "RevisionNotFoundError", "HFValidationError", "DatasetNotFoundError"):
            return InputError(
                f"The hub has no data set {self.given!r} that this machine may read ({message}); for a private one "
                "log in with `hf auth login`, for a local folder give its path, for example hf:./folder:train."
            )
        if isinstance(error, ConnectionError) or kind in ("ConnectError", "ConnectTimeout", "ReadTimeout"):
            return InputError(
                f"The Hugging Face hub cannot be reached for {self.given!r} ({message}): without a connection, give "
                "the data files themselves, or a local folder with the files of the data set, for example "
                f"hf:./folder:{self.split}."
            )
        return InputError(f"{self.given!r} cannot be read ({message}).")


@cache
def _load_commit(data: HubData) -> Any:
    """Return the split at a commit. A worker reads many files of it, and each loading asks the hub several times."""
    return data._load()


def _close(rows: Generator[Any, None, None]) -> None:
    """Stop reading rows before the process ends.

    If reading stopped early, Arrow's threads still hold Python objects when the interpreter ends, and would abort the
    process (apache/arrow#45214).
    """
    with contextlib.suppress(ValueError):  # another thread is still reading
        rows.close()
    gc.collect()
    time.sleep(_SETTLE_SECONDS)


@contextlib.contextmanager
def _hide_progress() -> Iterator[None]:
    """Hide the progress bars of `datasets` if standard error is not a terminal."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    silence = not sys.stderr.isatty() and not are_progress_bars_disabled()
    if silence:
        disable_progress_bars()
    try:
        yield
    finally:
        if silence:
            enable_progress_bars()
