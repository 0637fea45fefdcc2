"""The data sets of an experiment: those of a folder with a manifest, or those of the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apood.data.declared_sets import ID_KEYS, check_keys, read_common
from apood.data.inputs import AUDIO_ENDINGS, find_files, read_records
from apood.data.presets import PRESETS
from apood.data.sounds import read_sounds
from apood.evaluation.result import MEAN
from apood.experiments.paper.tasks import Settings, Task
from apood.support.checks import suggest_name
from apood.support.errors import InputError
from apood.support.files import read_toml

__all__ = ["MANIFEST", "OOD", "DataSet", "DataSets", "find_paper_data_sets", "read_manifest"]

MANIFEST = "apood-data.toml"
OOD = "ood."
"""The prefix of the role of an OOD set; the name of the set follows."""

_ROLES = (*ID_KEYS, "aux")
_TOP_KEYS = (*_ROLES, "ood", "field", "prompt", "settings")
_SET_KEYS = ("files", "field", "labels")
_ARCHIVE = ".npz"


@dataclass(frozen=True)
class DataSet:
    """The files or hub data sets that one set is read from.

    Attributes:
        inputs: inputs as `apood embed` takes them.
        field: the field with the text; None for the preset's field, or "text".
        labels: the labels of the sounds or bags that belong to the set; empty for all.
        shuffled: whether the set is read into memory and shuffled.
        local: whether the whole set is on this machine.
    """

    inputs: tuple[str, ...]
    field: str | None = None
    labels: tuple[str, ...] = ()
    shuffled: bool = False
    local: bool = True

    @property
    def sampled(self) -> bool:
        """Whether records are sampled in one pass: the paper's sets need not fit into memory."""
        return self.local and not self.shuffled


@dataclass(frozen=True)
class DataSets:
    """All sets of an experiment by role, and the other contents of a manifest.

    Attributes:
        by_role: the sets; the roles are `id`, `id_train`, `id_test`, `aux`, and `ood.` with a name.
        settings: how much of each set is used.
        prompt: what a model reads in mode output, with `{text}` in place of the text; None for the text alone.
        left_out: the OOD sets of the paper that are missing.
    """

    by_role: Mapping[str, DataSet]
    settings: Settings
    prompt: str | None = None
    left_out: tuple[str, ...] = ()

    @property
    def ood(self) -> list[str]:
        """The names of the OOD sets."""
        return [role.removeprefix(OOD) for role in self.by_role if role.startswith(OOD)]


def read_manifest(folder: Path, task: Task, skipped: Sequence[str] = ()) -> DataSets:
    """Return the sets that the manifest in `folder` names; raise InputError if a file is missing or unsuitable."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise InputError(f"There is no folder {str(folder)!r} with a file {MANIFEST}.")
    try:
        content = read_toml(path)
    except FileNotFoundError as error:
        raise InputError(f"The folder {str(folder)!r} has no {MANIFEST}, which says what its files are for.") from error
    except OSError as error:
        raise InputError(f"The manifest {path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # from the TOML parser or the UTF-8 decoder
        raise InputError(f"The manifest {path} is not TOML: {error}.") from error
    try:
        data = _leave_out(_parse_manifest(content, folder, task), skipped)
        _check_files(data, task)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return data


def _parse_manifest(content: dict[str, Any], folder: Path, task: Task) -> DataSets:
    check_keys(content, _TOP_KEYS, "a manifest")
    common, prompt, ood, _ = read_common(content, "", "[ood]")
    by_role = {role: _parse_set(role, content[role], folder, common) for role in _ROLES if role in content}
    for name, value in ood.items():
        column = task.column(name)
        if column.casefold() == MEAN:
            raise InputError(f"An OOD set cannot be called {name!r}: that name is kept for the mean over the sets.")
        if OOD + column in by_role:
            raise InputError(f"Two OOD sets are called {column!r}.")
        by_role[OOD + column] = _parse_set(OOD + name, value, folder, common)
    settings = content.get("settings", {})
    if not isinstance(settings, dict):
        raise InputError(f"settings must be a table, got {settings!r}.")
    missing = tuple(role.removeprefix(OOD) for role in task.sets if role.startswith(OOD) and role not in by_role)
    return DataSets(by_role, task.settings.replace_from(settings), prompt, missing)


def _parse_set(role: str, value: Any, folder: Path, common: str | None) -> DataSet:
    table = value if isinstance(value, dict) else {"files": value}
    check_keys(table, _SET_KEYS, role)
    files, labels, own = table.get("files"), table.get("labels", []), table.get("field", common)
    files = [files] if isinstance(files, str) else files
    if not (isinstance(files, list) and files and all(isinstance(file, str) and file for file in files)):
        raise InputError(f"{role} must be a file, a list of files, or a table with files, got {value!r}.")
    if not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
        raise InputError(f"The labels of {role} must be a list of texts, got {labels!r}.")
    if own is not None and not isinstance(own, str):
        raise InputError(f"The field of {role} must be a text, got {own!r}.")
    return DataSet(tuple(str(folder / file) for file in files), own, tuple(labels), shuffled=True)


def _check_files(data: DataSets, task: Task) -> None:
    """Raise InputError if a file is missing or of the wrong kind, or if two roles share a file."""
    known: dict[str, DataSet] = {}
    for role, own in data.by_role.items():
        if task.items == "texts":
            if own.labels:
                raise InputError(f"{role} has labels, which only sounds and bags can have.")
            read_records(own.inputs, field=own.field)
        elif task.items == "sounds":
            read_sounds(own.inputs)
        else:
            for name in own.inputs:
                if not (name.endswith(_ARCHIVE) and Path(name).is_file()):
                    raise InputError(f"There is no {_ARCHIVE} archive {name!r} to read bags from.")
        for other, earlier in known.items():
            if shared := _find_shared_file(own, earlier):
                raise InputError(f"{role} and {other} both have {shared}: each must be a set of its own.")
        known[role] = own


def _find_shared_file(one: DataSet, other: DataSet) -> str | None:
    """Return a file from which both sets read the same sequences."""
    if one.field != other.field or (one.labels and other.labels and not {*one.labels} & {*other.labels}):
        return None
    files = {file.resolve() for name in other.inputs for file in find_files(name, AUDIO_ENDINGS)}
    return next(
        (repr(str(file)) for name in one.inputs for file in find_files(name, AUDIO_ENDINGS) if file.resolve() in files),
        None,
    )


def find_paper_data_sets(task: Task, folder: Path | None, skipped: Sequence[str] = ()) -> DataSets:
    """Return the paper's sets, from `folder` if they are there and else from the hub.

    `folder` holds the sets that must be downloaded by hand, in the places that the task names. It may also hold copies
    of hub data sets, as OWNER/NAME or OWNER/NAME/CONFIG.
    """
    if task.unknown:
        raise InputError(
            f"There is no profile paper for {task.name}: the paper leaves it open, {task.unknown}; use profile local "
            f"with a folder that has a file {MANIFEST}."
        )
    by_role = {role: _find_preset(given, folder) for role, given in task.sets.items()}
    data = _leave_out(DataSets(by_role, task.settings), skipped)
    if missing := [task.sets[role] for role, own in data.by_role.items() if own.local and not _can_be_read(own)]:
        names = ", ".join(given.partition(":")[0] for given in missing)
        where = "the folder of --data, which is not given" if folder is None else str(folder)
        raise InputError(
            f"These sets of the paper must be downloaded by hand and are missing: {names} (the first is expected as "
            f"{missing[0].partition(':')[2]} below {where}); `apood datasets NAME` says how to get one, and "
            "--skip NAME leaves an OOD set out."
        )
    return data


def _find_preset(given: str, folder: Path | None) -> DataSet:
    name, _, where = given.partition(":")
    preset = PRESETS[name]
    if preset.hub_id is None:
        return DataSet((f"{name}:{(folder or Path()) / where}",))
    copy = None if folder is None else folder / preset.given.removeprefix("hf:").partition(":")[0]
    if copy is None or not copy.is_dir():
        return DataSet((given,), local=False)
    return DataSet((f"hf:{copy}:{where}",), preset.field)


def _can_be_read(own: DataSet) -> bool:
    try:
        read_records(own.inputs, field=own.field)
    except InputError:
        return False
    return True


def _leave_out(data: DataSets, skipped: Sequence[str]) -> DataSets:
    names = {name.casefold(): name for name in data.ood}
    for name in skipped:
        if name.casefold() not in names:
            raise InputError(
                f"There is no OOD set {name!r}{suggest_name(name, data.ood)} to skip; there are {', '.join(data.ood)}."
            )
    gone = list(dict.fromkeys(names[name.casefold()] for name in skipped))
    if len(gone) == len(names):
        raise InputError("All OOD sets are skipped: at least one is needed.")
    by_role = {role: own for role, own in data.by_role.items() if role not in {OOD + name for name in gone}}
    return DataSets(by_role, data.settings, data.prompt, (*data.left_out, *gone))
