"""Where an experiment's sequences come from: the manifest of a folder of one's own, or the paper's sets."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apood.data.inputs import AUDIO_ENDINGS, find_files, read_records
from apood.data.presets import PRESETS
from apood.data.sounds import read_sounds
from apood.evaluation.result import MEAN
from apood.experiments.paper.settings import Settings
from apood.experiments.paper.tasks import Task
from apood.support.checks import suggest_name
from apood.support.errors import InputError

__all__ = ["MANIFEST", "OOD", "Data", "Source", "files_of", "paper_data", "read_manifest"]

MANIFEST = "apood-data.toml"
OOD = "ood."
"""What the role of an OOD set begins with; its name follows."""

_ROLES = ("id", "id_train", "id_test", "aux")
_TOP = (*_ROLES, "ood", "field", "prompt", "settings")
_SET = ("files", "field", "labels")
_ARCHIVE = ".npz"


@dataclass(frozen=True)
class Source:
    """What one set is read from.

    Attributes:
        inputs: as `apood embed` takes them.
        field: what holds the text; None for that of a preset, or "text".
        labels: of sounds: those alone that are labelled so; all if empty.
        shuffled: whether it is read in random order, all of it into memory.
        local: whether all of it lies on this machine.
    """

    inputs: tuple[str, ...]
    field: str | None = None
    labels: tuple[str, ...] = ()
    shuffled: bool = False
    local: bool = True

    @property
    def drawn(self) -> bool:
        """Whether what is used of it is drawn at random in one pass: the paper's sets need not fit into memory."""
        return self.local and not self.shuffled


@dataclass(frozen=True)
class Data:
    """All sets of an experiment by their roles, and what a manifest says besides.

    Attributes:
        sources: by role: `id`, `id_train`, `id_test`, `aux`, or `ood.` and a name.
        settings: how much of them is used.
        prompt: what a model reads in mode output, with `{text}` where the text goes; None for the text alone.
        left_out: sets of the paper that are not there.
    """

    sources: Mapping[str, Source]
    settings: Settings
    prompt: str | None = None
    left_out: tuple[str, ...] = field(default=())

    @property
    def ood(self) -> list[str]:
        """The names of the OOD sets."""
        return [role.removeprefix(OOD) for role in self.sources if role.startswith(OOD)]


def read_manifest(folder: Path, task: Task, skipped: Sequence[str] = ()) -> Data:
    """What the manifest in `folder` says; its files lie relative to it, and each must be there."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise InputError(f"There is no folder {str(folder)!r} with a file {MANIFEST}.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"The folder {str(folder)!r} has no {MANIFEST}, which says what its files are for.") from error
    except OSError as error:
        raise InputError(f"The manifest {path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # of TOML and of UTF-8
        raise InputError(f"The manifest {path} is not TOML: {error}.") from error
    try:
        data = _without(_data(content, folder, task), skipped)
        _check_files(data, task)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return data


def _data(content: dict[str, Any], folder: Path, task: Task) -> Data:
    for key in content:
        if key not in _TOP:
            raise InputError(
                f"There is no key {key!r}{suggest_name(key, _TOP)} in a manifest; allowed are {', '.join(_TOP)}."
            )
    common, prompt, ood = content.get("field"), content.get("prompt"), content.get("ood")
    for key, text in (("field", common), ("prompt", prompt)):
        if text is not None and not isinstance(text, str):
            raise InputError(f"{key} must be a text, got {text!r}.")
    if prompt is not None and prompt.count("{text}") != 1:
        raise InputError(f"prompt must have one {{text}} where the text goes, got {prompt!r}.")
    given = tuple(role for role in ("id", "id_train", "id_test") if role in content)
    if given not in (("id",), ("id_train", "id_test")):
        found = " and ".join(given) or "none of them"
        raise InputError(f"The ID files are either id_train and id_test, or id alone, got {found}.")
    if not isinstance(ood, dict) or not ood:
        raise InputError("The table [ood] must name at least one OOD set and its file.")
    sources = {role: _source(role, content[role], folder, common) for role in _ROLES if role in content}
    for name, value in ood.items():
        column = task.column(name)
        if column.casefold() == MEAN:
            raise InputError(f"An OOD set cannot be called {name!r}: that name is kept for the mean over the sets.")
        if OOD + column in sources:
            raise InputError(f"Two OOD sets are called {column!r}.")
        sources[OOD + column] = _source(OOD + name, value, folder, common)
    settings = content.get("settings", {})
    if not isinstance(settings, dict):
        raise InputError(f"settings must be a table, got {settings!r}.")
    expected = [role.removeprefix(OOD) for role in task.sets if role.startswith(OOD)]
    missing = tuple(name for name in expected if OOD + name not in sources)
    return Data(sources, task.settings.changed(settings), prompt, missing)


def _source(role: str, value: Any, folder: Path, common: str | None) -> Source:
    table = value if isinstance(value, dict) else {"files": value}
    for key in table:
        if key not in _SET:
            raise InputError(
                f"There is no key {key!r}{suggest_name(key, _SET)} in {role}; allowed are {', '.join(_SET)}."
            )
    files, labels, own = table.get("files"), table.get("labels", []), table.get("field", common)
    files = [files] if isinstance(files, str) else files
    if not (isinstance(files, list) and files and all(isinstance(file, str) and file for file in files)):
        raise InputError(f"{role} must be a file, a list of files, or a table with files, got {value!r}.")
    if not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
        raise InputError(f"The labels of {role} must be a list of texts, got {labels!r}.")
    if own is not None and not isinstance(own, str):
        raise InputError(f"The field of {role} must be a text, got {own!r}.")
    return Source(tuple(str(folder / file) for file in files), own, tuple(labels), shuffled=True)


def _check_files(data: Data, task: Task) -> None:
    """Refuses files that are not there or cannot be what they should be, and one set in two roles."""
    known: dict[str, Source] = {}
    for role, source in data.sources.items():
        if task.items == "texts":
            if source.labels:
                raise InputError(f"{role} has labels, which only sounds have.")
            read_records(source.inputs, field=source.field)
        elif task.items == "sounds":
            read_sounds(source.inputs)
        else:
            for name in source.inputs:
                if not (name.endswith(_ARCHIVE) and Path(name).is_file()):
                    raise InputError(f"There is no {_ARCHIVE} archive {name!r}, which bags are read from.")
        for other, earlier in known.items():
            if shared := _shared(source, earlier):
                raise InputError(f"{role} and {other} both have {shared}: each must be a set of its own.")
        known[role] = source


def _shared(one: Source, other: Source) -> str | None:
    """A file that both read the same sequences from."""
    if one.field != other.field or (one.labels and other.labels and not {*one.labels} & {*other.labels}):
        return None
    files = {file.resolve() for name in other.inputs for file in files_of(name)}
    return next((repr(str(file)) for name in one.inputs for file in files_of(name) if file.resolve() in files), None)


def files_of(name: str) -> list[Path]:
    """Return the files that an input stands for; none if it names something else than files."""
    return find_files(name, AUDIO_ENDINGS)


def paper_data(task: Task, folder: Path | None, skipped: Sequence[str] = ()) -> Data:
    """The paper's sets: from the hub, or from below `folder` where they lie there.

    `folder` has what must be downloaded by hand, in the places that the task says, and may have copies of data sets
    of the hub, as OWNER/NAME or OWNER/NAME/CONFIG.
    """
    if task.unknown:
        raise InputError(
            f"Profile paper cannot be had for {task.name}: the paper leaves it open, {task.unknown}; use profile local "
            f"with a folder that has a file {MANIFEST}."
        )
    sources = {role: _preset_source(given, folder) for role, given in task.sets.items()}
    data = _without(Data(sources, task.settings), skipped)
    if absent := [task.sets[role] for role, source in data.sources.items() if source.local and not _is_there(source)]:
        names = ", ".join(given.partition(":")[0] for given in absent)
        where = f"{absent[0].partition(':')[2]} below " + (
            "the folder of --data, which is not given" if folder is None else str(folder)
        )
        raise InputError(
            f"These sets of the paper must be downloaded by hand and are not there: {names} (the first is looked for "
            f"as {where}); `apood datasets NAME` says how to get one, and --skip NAME leaves an OOD set out."
        )
    return data


def _preset_source(given: str, folder: Path | None) -> Source:
    name, _, where = given.partition(":")
    preset = PRESETS[name]
    if preset.hub_id is None:
        return Source((f"{name}:{(folder or Path()) / where}",))
    copy = None if folder is None else _copy(preset.given, folder)
    if copy is None:
        return Source((given,), local=False)
    return Source((f"hf:{copy}:{where}",), preset.field)


def _copy(given: str, folder: Path) -> Path | None:
    """The local copy of a data set of the hub, if there is one."""
    place = folder / given.removeprefix("hf:").partition(":")[0]
    return place if place.is_dir() else None


def _is_there(source: Source) -> bool:
    try:
        read_records(source.inputs, field=source.field)
    except InputError:
        return False
    return True


def _without(data: Data, skipped: Sequence[str]) -> Data:
    names = {name.casefold(): name for name in data.ood}
    for name in skipped:
        if name.casefold() not in names:
            raise InputError(
                f"There is no OOD set {name!r}{suggest_name(name, data.ood)} to skip; there are {', '.join(data.ood)}."
            )
    gone = [names[name.casefold()] for name in dict.fromkeys(skipped)]
    if len(set(gone)) == len(names):
        raise InputError("All OOD sets are skipped: at least one is needed.")
    sources = {role: source for role, source in data.sources.items() if role not in {OOD + name for name in gone}}
    return Data(sources, data.settings, data.prompt, (*data.left_out, *gone))
