"""A job: what is to be done with which inputs, in a folder that keeps what is done."""

import hashlib
import itertools
import json
import secrets
import shutil
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from apood.data.inputs import Request
from apood.data.parts import Part, find_parts, find_versions, pin_input
from apood.data.record import BadRecord, MissingField, Record
from apood.scale.shards import Counts, find_committed, list_finished, read_counts
from apood.scale.tries import delete_marks
from apood.scale.units import PART_BYTES, UNIT_RECORDS, read_safely
from apood.support.background import map_concurrently
from apood.support.cloud import CloudAddress, Place, list_names, parse_place, refuse_file, write_file
from apood.support.errors import DataWarning, InputError
from apood.support.files import is_temporary, parse_json, read_json, refuse_unwritable, source_digest, write_json
from apood.support.version import __version__

__all__ = ["MANIFEST", "Job", "Settings", "read_plan"]

MANIFEST = "_manifest.json"
_PLAN = "_plan.json"  # readers of Parquet folders skip names that begin like this
_CLAIM = "_claim-"
_MOST_NAMES = 5  # of a list in a message
_FIRST = 100  # records that are read to know whether the fields are there
_COMMANDS = {"score": "score", "embed": "embed", "measure": "fit"}
_OPTIONS = ("field", "target_field", "keep", "dtype", "settings", "sample", "model")  # others are in `encoder`


@dataclass(frozen=True)
class Settings:
    """What a worker is told. It is sent to every worker, so it holds plain values only.

    Attributes:
        folder: the folder of the job, which all machines of the cluster see: a path, or an address.
        request: the fields to read.
        encoder: the model and the options of the encoder, for workers that have no detector.
        detector: the folder of the detector.
        model: the folder of the encoder's model, if it has moved.
        dtype: the dtype of stored tokens.
        left_out: the places of documents that are not measured.
        seed: the seed of the keys of documents.
        remembered: a key; documents whose keys are below it may be remembered, or drawn.
        unit_records: the largest number of documents of a unit, or of those that are drawn or remembered of a part.
        cwd: the folder of the command, from which relative paths of inputs and models begin.
        version: the version of apood of the command; workers must have the same.
        source: a hash of its source files, which must be the same, too.
        plan: a hash of the plan of the job, which tells it from another one with the same folder.
        on_gpu: whether workers of a cluster use GPUs; None for a worker in the process of the command.
    """

    folder: str
    request: Request
    encoder: Mapping[str, Any] | None = None
    detector: str | None = None
    model: str | None = None
    dtype: str = "float16"
    left_out: frozenset[str] = frozenset()
    seed: int = 0
    remembered: int = 0
    unit_records: int = UNIT_RECORDS
    cwd: str = field(default_factory=lambda: str(Path.cwd()))
    version: str = __version__
    source: str = field(default_factory=lambda: source_digest(everything=True))
    plan: str = ""
    on_gpu: bool | None = None


@dataclass(frozen=True)
class Job:
    """What is to be done.

    Attributes:
        kind: what is made: "score", "embed" or "measure".
        settings: what workers are told.
        parts: the parts of the inputs.
        identity: whatever else decides the result, as JSON.
        inputs: the inputs as they were given; each with the name of what is read: those of the hub have a commit.
    """

    kind: str
    settings: Settings
    parts: Sequence[Part]
    identity: Mapping[str, Any]
    inputs: Mapping[str, str]

    @classmethod
    def plan(
        cls,
        kind: str,
        inputs: Sequence[str],
        settings: Settings,
        identity: Mapping[str, Any],
        part_bytes: int = PART_BYTES,
    ) -> Self:
        """Return the job for these inputs. If an earlier run has begun it, sets of the hub have the commits of then.

        Raises:
            InputError: if the inputs cannot be used, or if most of the first records lack a field and none is good.
        """
        pinned = {name: pin_input(name) for name in inputs}
        if any(name != given for given, name in pinned.items()):
            pinned |= _find_commits(parse_place(settings.folder), inputs)
        parts = find_parts([pinned[name] for name in inputs], part_bytes)
        if not parts:
            raise InputError(f"There is no text in {', '.join(map(repr, inputs))}.")
        _refuse_missing_field(parts, settings.request)
        job = cls(kind, settings, parts, identity, pinned)
        digest = hashlib.sha256(json.dumps(job._plan).encode()).hexdigest()
        return replace(job, settings=replace(settings, plan=digest))

    @property
    def place(self) -> Place:
        """Where what is done is kept: a folder on a disk or in a cloud store."""
        return parse_place(self.settings.folder)

    @property
    def _kept(self) -> Place:
        """What the command keeps until its end: of a fit also the sample and its detector, beside the folder."""
        folder = self.settings.folder
        return parse_place(folder.rpartition("/")[0]) if self.kind == "measure" else self.place

    @cached_property
    def _plan(self) -> dict[str, Any]:
        described = [list(asdict(part).values()) for part in self.parts]
        request = asdict(self.settings.request)
        return {
            "kind": self.kind,
            "apood": __version__,
            "source": source_digest(),
            "parts": len(self.parts),
            "inputs": hashlib.sha256(json.dumps(described).encode()).hexdigest(),
            "commits": {given: name for given, name in self.inputs.items() if name != given},
            "request": json.loads(json.dumps(request)),
            **json.loads(json.dumps(dict(self.identity))),
        }

    def has_begun(self) -> bool:
        """Return whether an earlier run of the job has written its plan. Nothing is written.

        Raises:
            InputError: if the folder holds something else, or the work of another job, or if it cannot be written to.
        """
        place = self.place
        if (place / _PLAN).exists():
            self._refuse_other_plan(place / _PLAN)
            return True
        refuse_file(place)
        if place.exists() and any(not own.startswith(_CLAIM) for own in list_names(place)):
            raise InputError(f"{place} already exists and is not empty: choose another folder.")
        if isinstance(place, Path):
            refuse_unwritable(place)
        return False

    def begin(self) -> list[int]:
        """Write the plan, unless an earlier run has, and return the parts that are still to do.

        Raises:
            InputError: see `has_begun`; or if another command begins at the same address in a cloud store.
        """
        place = self.place
        if not self.has_begun():
            if isinstance(place, CloudAddress):
                self._claim(place)
            _write_json(place / _PLAN, self._plan)
        finished = list_finished(find_committed(place))
        return [number for number in range(len(self.parts)) if number not in finished]

    def _claim(self, place: CloudAddress) -> None:
        """Write an object of a random name; raise InputError if another command has written one, too.

        A cloud store has no locks, and pyarrow cannot ask for an object to be written only if there is none. But
        stores list everything that was written before. So of two commands that begin at the same moment, the one that
        lists later finds the claim of the other. If each finds that of the other, none of them begins.
        """
        own = f"{_CLAIM}{secrets.token_hex(8)}"  # also the same command may have been started twice
        _write_json(place / own, {"plan": self.settings.plan})
        if any(name.startswith(_CLAIM) and name != own for name in list_names(place)):
            raise InputError(
                f"Another command began to write to {place} at the same moment, or was interrupted when it had just "
                f"begun: choose another folder, or delete its objects {_CLAIM}* if no command writes to it."
            )

    def _refuse_other_plan(self, path: Place) -> None:
        before = read_json(path) if isinstance(path, Path) else parse_json(path.read_bytes())
        if any(before.get(key) != value for key, value in self._plan.items()):
            raise InputError(
                f"{self._kept} holds the work of another command, {_describe_difference(before, self._plan)}: "
                f"continue it as it was begun, delete {self._kept} to begin anew, or choose another --out."
            )

    def _refuse_changed_inputs(self, *, may_be_gone: bool) -> None:
        now: dict[str, str] = {}
        errors = [InputError] if may_be_gone else []
        for name in self.inputs.values():
            with suppress(*errors):
                now |= find_versions([name])
        changed = {repr(part.name): None for part in self.parts if now.get(part.name, part.version) != part.version}
        if changed:
            have = "has" if len(changed) == 1 else "have"
            raise InputError(
                f"{_list_some(changed)} {have} changed since the work began, so that {self.place} may hold a part of "
                "both versions: choose another folder, and do it again."
            )

    def finish(self) -> Counts:
        """Write the manifest, which lists all shards in the order of the inputs, and return the counts of all rows.

        A DataWarning names inputs that are damaged, and another one those of which a part was given up.

        Raises:
            InputError: if a shard is missing, if another job began in the same place at the same time, or if an input
                has changed since this one began. If no shard is missing, an input may be gone.
        """
        place = self.place
        self._refuse_other_plan(place / _PLAN)  # on a disk that has no locks, the other one may have replaced the plan
        committed = find_committed(place)
        missing = set(range(len(self.parts))) - list_finished(committed)
        self._refuse_changed_inputs(may_be_gone=not missing)  # before others: the same command would not go on
        if missing:
            raise InputError(f"{len(missing)} parts of {place} are missing: run the same command again.")
        total, shards = Counts(), []
        damaged, given_up = dict[str, None](), dict[str, None]()
        paths = [(part, path) for part in sorted(committed) for path in committed[part]]
        found = map_concurrently(read_counts, [path for _, path in paths])
        for (part, path), (counts, _) in zip(paths, found, strict=True):
            shards.append({"file": path.name, "first": total.rows, "input": self.parts[part].name, "rows": counts.rows})
            total.add(counts)
            if counts.damaged:
                damaged[repr(self.parts[part].name)] = None
            if counts.given_up:
                given_up[repr(self.parts[part].name)] = None
        delete_marks(place, self.settings.plan)
        if isinstance(place, Path):
            for left in filter(is_temporary, place.iterdir()):  # of workers that were killed
                shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
        _write_json(place / MANIFEST, {**self._plan, "counts": asdict(total), "shards": shards})
        if damaged:
            are = "is damaged, and was" if len(damaged) == 1 else "are damaged, and were"
            warnings.warn(f"{_list_some(damaged)} {are} read only up to the damage.", DataWarning, stacklevel=2)
        if given_up:
            were = "A part of {} was" if total.given_up == 1 else "Parts of {} were"
            message = f"{were.format(_list_some(given_up))} given up, because each worker that tried to read it died."
            warnings.warn(message, DataWarning, stacklevel=2)
        return total


def _refuse_missing_field(parts: Iterable[Part], request: Request) -> None:
    """Raise InputError if none of the first records can be used, and most lack a field: another name was meant."""
    records = (record for part in parts for record in read_safely(part, request))
    bad: list[BadRecord] = []
    for record in itertools.islice(records, _FIRST):
        if isinstance(record, Record):
            return
        bad.append(record)
    missing = [record for record in bad if isinstance(record, MissingField)]
    if 2 * len(missing) > len(bad):
        raise InputError(f"{missing[0].reason.rstrip('.')}; name it with {request.options}.")


def _describe_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how the command of an earlier plan differs from that of the plan `now`, as a clause about the former."""
    wrong = {key for key, value in now.items() if before.get(key) != value}
    if "kind" in wrong:
        return f"`apood {_COMMANDS.get(before.get('kind', ''), '…')}`"
    if "apood" in wrong:
        return f"which apood {before.get('apood')} began, and this is apood {now['apood']}"
    if "source" in wrong:
        return f"which other code of apood {now['apood']} began"
    had, has = _list_options(before), _list_options(now)
    if differing := [name for name in sorted({*had, *has}) if had.get(name) != has.get(name)]:
        one, two = (" and ".join(own.get(name, f"no {name}") for name in differing) for own in (had, has))
        return f"which has {one}, and this one has {two}"
    if "detector" in wrong:
        return "whose detector is not the same"
    return "whose inputs are not the same, or were written again since"


def _list_options(plan: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of the command of a plan, as they are given, by their names."""
    known = {**plan.get("request", {}), **plan}
    values = {name: known.get(name) for name in _OPTIONS} | plan.get("encoder", {})
    options = {}
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        if value is None or value == []:
            continue
        if name == "settings":
            options["--set"] = f"--method and --set as in {value}"
        elif name == "model":
            digest = hashlib.sha256(json.dumps(value).encode()).hexdigest()
            options[option] = f"{option} {value.get('folder') or value['encoder']['model']} ({digest[:8]})"
        elif isinstance(value, bool):
            options[option] = option if value else option.replace("--", "--no-", 1)
        elif isinstance(value, list):
            options[option] = " ".join(f"{option} {own}" for own in value)
        else:
            options[option] = f"{option} {value}"
    return options


def _list_some(names: Collection[str]) -> str:
    """Return the first few of some names, and the number of the others."""
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(itertools.islice(names, _MOST_NAMES)) + more


def _find_commits(place: Place, inputs: Collection[str]) -> dict[str, str]:
    """Return the names with commits by which an earlier run in a folder reads some of these inputs."""
    if not (place / _PLAN).exists():
        return {}
    commits = read_plan(place)[0].get("commits", {})
    return {given: name for given, name in commits.items() if given in inputs}


def _write_json(place: Place, content: Mapping[str, Any]) -> None:
    with write_file(place) as temporary:
        write_json(temporary, content)


def read_plan(place: Place) -> tuple[dict[str, Any], str]:
    """Return the plan in the folder of a job, and its hash, as in `Settings`."""
    plan = parse_json((place / _PLAN).read_bytes())
    return plan, hashlib.sha256(json.dumps(plan).encode()).hexdigest()
