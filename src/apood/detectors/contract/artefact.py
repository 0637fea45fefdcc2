"""A saved detector: a folder of `config.json` and `model.safetensors`, complete or absent, never pickle.

`config.json` holds the name of the method, the constructor's arguments, and the learnt attributes that are not tensors;
`model.safetensors` holds the tensors. The configuration also holds the hash of either, and the class of a method that
is not registered. The members of a detector that is made of others are in `members/0`, `members/1`, ..., each a saved
detector itself; the hashes of their configurations are in the configuration of the whole. Whoever saves a detector may
add facts about it, which are kept in the configuration and mean nothing to the detector. What could not be loaded again
is refused before it is written.
"""

import hashlib
import inspect
import json
import math
import operator
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save_file
from torch import Tensor

from apood.decisions.conformal import Calibration, score_tolerance
from apood.detectors.contract.base import Detector
from apood.detectors.contract.registry import find_saved_class, name_class
from apood.support.cloud import CloudAddress, Place, parse_place
from apood.support.cloud_folders import fetch_folder, publish_folder
from apood.support.errors import ArtefactError, InputError
from apood.support.files import is_being_replaced, read_json, sha256_of, write_json
from apood.support.version import __version__

__all__ = [
    "CONFIG_FILE", "TENSORS_FILE", "build_detector", "describe_detector", "from_json", "load_detector",
    "load_with_facts", "refuse_foreign", "save_detector", "to_json",
]  # fmt: skip

CONFIG_FILE = "config.json"
"""The file of a saved detector that is written last, and covers the others by their hashes."""

TENSORS_FILE = "model.safetensors"
"""The file of a saved detector with its tensors."""

_SCHEMA = 1
_ATTEMPTS, _PAUSE = 200, 0.005  # tries to read a folder that other processes replace, and seconds between them
_MEMBERS = "members"
_HEADER_BYTES, _NUMBER_BYTES = 100_000_000, 16  # the most of a header of safetensors, and of a number
_CLASS = "class"  # of a method that is not registered
_FACTS = "facts"
_HASH = "config_sha256"  # of the rest of the configuration
_FIELDS = {
    "method": str,
    "parameters": dict,
    "learnt": dict,
    "tensors": dict,
    "sha256": str,
    _CLASS: str,
    _MEMBERS: list,
    _FACTS: dict,
    _HASH: str,
}
_ABSENT: dict[str, Any] = {_CLASS: "", _MEMBERS: [], _FACTS: {}}  # most detectors have none of them
_PLAIN = {Tensor: Tensor, bool: bool, int: int, float: int | float, str: str}  # what an annotation allows
_CALIBRATION = ("accept_", "threshold_", "calibration_scores_")  # absent before `calibrate`


def save_detector(detector: Detector, folder: str | Path, facts: Mapping[str, Any] | None = None) -> None:
    """Write `detector` to `folder`, replacing an older artefact there; `facts` are JSON about it.

    On this machine it is replaced in one step. A cloud store has no such step: until the end, readers find a detector
    that is incomplete, and refuse it.
    """
    try:
        with publish_folder(parse_place(folder), CONFIG_FILE, refuse_foreign) as temporary:
            _write(detector, temporary, facts or {})
    except (OSError, SafetensorError) as error:  # a full disk raises the latter
        cause = getattr(error, "strerror", None) or error
        raise ArtefactError(f"The detector cannot be written to {folder}: {cause}.") from error


def _write(detector: Detector, folder: Path, facts: Mapping[str, Any]) -> str:
    """Write `detector` to a new folder, and return the hash of its configuration, which covers all files."""
    learnt = {key: value for key, value in vars(detector).items() if key.endswith("_")}
    if (calibration := vars(detector).get("_calibration")) is not None:
        values = (calibration.accept, calibration.threshold, torch.tensor(calibration.scores))
        learnt |= dict(zip(_CALIBRATION, values, strict=True))
    members = []
    for number, member in enumerate(learnt.pop("members_", [])):
        place = folder / _MEMBERS / str(number)
        place.mkdir(parents=True)
        members.append(_write(member, place, {}))
    # an object such as a LengthLaw is stored as a tensor; on loading, the annotated type restores it
    learnt |= {key: value.to_tensor() for key, value in learnt.items() if hasattr(value, "to_tensor")}
    # copied, because the file format refuses tensors that share memory
    tensors = {key: value.detach().cpu().clone() for key, value in learnt.items() if isinstance(value, Tensor)}
    described = {
        **describe_detector(detector),
        "learnt": {key: to_json(value) for key, value in learnt.items() if key not in tensors},
    }
    _refuse_unloadable(detector, {**described, _FACTS: dict(facts)}, tensors)
    save_file(tensors, folder / TENSORS_FILE)
    config = {
        "schema": _SCHEMA,
        **described,
        "versions": {"apood": __version__, "torch": str(torch.__version__)},
        "tensors": {key: {"shape": list(t.shape), "dtype": str(t.dtype)} for key, t in tensors.items()},
        "sha256": sha256_of(folder / TENSORS_FILE),
    }
    config |= ({_MEMBERS: members} if members else {}) | ({_FACTS: dict(facts)} if facts else {})
    digest = _hash_config(config)
    write_json(folder / CONFIG_FILE, config | {_HASH: digest})
    shutil.copymode(
        folder / CONFIG_FILE, folder / TENSORS_FILE
    )  # safetensors writes files that only the owner can read
    return digest


def _refuse_unloadable(detector: Detector, described: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Raise `ArtefactError` if a detector that is written like this could not be loaded again."""
    members = vars(detector).get("members_", [])
    try:
        _restore(json.loads(json.dumps(described, allow_nan=False)), tensors, members, "it")
    except (ArtefactError, TypeError, ValueError) as error:  # JSON raises the latter two
        reason = str(error).rstrip(".")
        raise ArtefactError(
            f"This {detector.name} detector is not saved, for it could not be loaded: {reason}."
        ) from error


def load_detector(folder: str | Path) -> Detector:
    """Return the detector that `save_detector` wrote to `folder`."""
    return load_with_facts(folder)[0]


def load_with_facts(folder: str | Path) -> tuple[Detector, dict[str, Any]]:
    """Return the detector in `folder`, and the facts that were saved with it.

    No module is imported because the folder names it: a method that is not registered must be imported before.

    Raises:
        ArtefactError: if there is no detector, or it is incomplete, was changed, or is from a newer apood.
    """
    place = parse_place(folder)
    if isinstance(place, CloudAddress):
        place = fetch_folder(place, CONFIG_FILE, _list_files, load_with_facts)
    folder = place
    for _ in range(_ATTEMPTS):
        before = _identify(folder)
        try:
            config = _read_config(folder)
            return _read(folder, config), config.get(_FACTS, {})
        except (ArtefactError, OSError) as error:
            # Another process may replace the folder between two reads. The hashes show it, and a second try helps.
            if _identify(folder) == before and not is_being_replaced(folder):
                if isinstance(error, ArtefactError):
                    raise
                raise ArtefactError(f"{folder} cannot be read: {error.strerror or error}.") from error
            time.sleep(_PAUSE)
    raise ArtefactError(f"{folder} is being replaced again and again by other processes: none of it could be read.")


def _identify(folder: Path) -> tuple[int, int] | None:
    """Return what tells a folder from another one that takes its place."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def _read(folder: Path, config: dict[str, Any]) -> Detector:
    tensors = _read_tensors(folder / TENSORS_FILE, config)
    members = [_read(place, own) for place, own in _read_member_configs(folder, config)]
    return _restore(config, tensors, members, str(folder))


def _restore(config: dict[str, Any], tensors: dict[str, Tensor], members: list[Detector], where: str) -> Detector:
    """Return the detector of a configuration; `where` is the folder that errors name."""
    try:
        detector = build_detector(config)
        detector.check_parameters()
        learnt = {key: from_json(value) for key, value in config["learnt"].items()} | tensors
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ArtefactError(f"{where} describes no detector of this apood: {error}") from error
    if members:
        learnt["members_"] = members
    calibration = _restore_calibration({key: learnt.pop(key) for key in _CALIBRATION if key in learnt}, where)
    learnable = _find_learnable(type(detector))
    if unknown := sorted(learnt.keys() - learnable.keys()):
        raise ArtefactError(
            f"{where} holds {unknown[0]!r}, which {detector.name} does not learn: its class has no such annotation."
        )
    if missing := sorted(key for key in learnable.keys() - learnt.keys() if not hasattr(type(detector), key)):
        raise ArtefactError(f"{where} is incomplete: it does not hold {missing[0]}.")
    # D is the dimension of the tokens, or of what is read instead
    sizes = {"members": len(members)} | ({"D": learnt["dim_"]} if "tokens" in detector.requires else {})
    for key, value in learnt.items():
        try:
            setattr(detector, key, _check_learnt(learnable[key], value, sizes))
        except (ValueError, TypeError) as error:
            raise ArtefactError(f"{where} holds a {key} that {detector.name} cannot have learnt: {error}.") from error
    if any("tokens" in member.requires and member.dim_ != detector.dim_ for member in members):
        raise ArtefactError(f"{where} holds members for tokens of other dimensions than D={detector.dim_}.")
    if calibration is not None:
        detector._calibration = calibration
    detector._remember_parameters()
    return detector


def _restore_calibration(stored: dict[str, Any], where: str) -> Calibration | None:
    """Return the calibration from its stored values, or None if there are none; refuse values that contradict it."""
    if not stored:
        return None
    if missing := [key for key in _CALIBRATION if key not in stored]:
        raise ArtefactError(f"{where} is incomplete: it does not hold {missing[0]}.")
    accept, threshold, scores = (stored[key] for key in _CALIBRATION)
    try:
        if not (isinstance(accept, float) and isinstance(threshold, float) and isinstance(scores, Tensor)):
            raise InputError("accept_ and threshold_ must be numbers, and calibration_scores_ a tensor.")
        calibration, coarse = (Calibration.from_scores(scores, accept, coarse=own) for own in (False, True))
    except InputError as error:
        raise ArtefactError(f"The calibration in {where} is not valid: {error}") from error
    if threshold == coarse.threshold:  # the threshold alone says which tolerance it has
        return coarse
    # older versions stored the k-th smallest score itself
    if not calibration.threshold <= threshold <= calibration.threshold + 2 * score_tolerance(scores):
        raise ArtefactError(
            f"The calibration in {where} is not valid: threshold_ is {threshold:.6g}, but its calibration scores and "
            f"accept rate give {calibration.threshold:.6g}."
        )
    return calibration


def _check_learnt(annotation: Any, value: Any, sizes: dict[str, Any]) -> Any:
    """Return a learnt value as the detector holds it; raise ValueError or TypeError if it is not as annotated.

    `sizes` has the sizes of named dimensions that are known so far, and gets those of this value.
    """
    kind, shape = (get_args(annotation) if get_origin(annotation) is Annotated else (annotation, None))[:2]
    if hasattr(kind, "from_tensor"):
        read = kind.from_tensor(_check_learnt(Annotated[Tensor, kind.__name__], value, sizes))
        if shape is not None and len(read) != sizes[shape]:
            raise ValueError(f"it is for {len(read)} {shape}, and there are {sizes[shape]}")
        return read
    if kind in _PLAIN:
        allowed = _PLAIN[kind]
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"it is {type(value).__name__}, not {kind.__name__}")
    choices = [choice for own in get_args(kind) if get_origin(own) is Literal for choice in get_args(own)]
    if choices:
        if value not in choices:
            raise ValueError(f"it is {value!r}, not one of {', '.join(map(repr, choices))}")
    elif get_origin(kind) in (Union, UnionType) and not isinstance(value, dict | None):  # an identity or nothing
        raise TypeError(f"it is {type(value).__name__}")
    elif get_origin(kind) is list:
        (item,) = get_args(kind)
        if not isinstance(value, list) or not all(isinstance(own, item) for own in value):
            raise TypeError(f"it is not a list of {item.__name__}")
    if shape is not None:
        names = shape.split()
        if value.dim() != len(names) or not value.is_floating_point():
            raise ValueError(f"it is a {value.dtype} tensor {list(value.shape)}, not numbers [{', '.join(names)}]")
        for name, size in zip(names, value.shape, strict=True):
            if sizes.setdefault(name, size) != size:
                raise ValueError(f"its shape is {list(value.shape)}, but {name} is {sizes[name]}")
    return value


def refuse_foreign(folder: Place) -> None:
    """Raise an error if `folder` holds anything but a saved detector, because saving replaces the whole folder."""
    if isinstance(folder, CloudAddress):
        if foreign := sorted(set(folder.list_names()) - {CONFIG_FILE, TENSORS_FILE, _MEMBERS}):
            raise ArtefactError(
                f"{folder} exists and is not just a saved detector ({foreign[0]}); choose another folder."
            )
        return
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    others = set(folder.glob("*")) - {folder / name for name in (CONFIG_FILE, TENSORS_FILE, _MEMBERS)}
    try:
        if not others:
            others = set(folder.rglob("*")) - _list_content(folder, _read_config(folder))
    except ArtefactError as error:
        raise ArtefactError(f"{folder} exists and is not a saved detector; choose another folder.") from error
    if others:
        other = min(others).relative_to(folder)
        raise ArtefactError(f"{folder} exists and is not just a saved detector ({other}); choose another folder.")


def _list_files(folder: Path) -> Iterator[str]:
    """Yield the files of a saved detector besides its configuration; each is read when the next one is asked for."""
    yield TENSORS_FILE
    for number in range(len(_read_config(folder).get(_MEMBERS, []))):
        place = f"{_MEMBERS}/{number}"
        yield f"{place}/{CONFIG_FILE}"
        yield from (f"{place}/{name}" for name in _list_files(folder / place))


def _list_content(folder: Path, config: dict[str, Any]) -> set[Path]:
    """Return all files and folders of a saved detector."""
    expected = {folder / CONFIG_FILE, folder / TENSORS_FILE}
    for place, own in _read_member_configs(folder, config):
        expected |= {place.parent, place} | _list_content(place, own)
    return expected


def _find_learnable(kind: type) -> dict[str, Any]:
    """Return the learnt attributes that a class and its bases annotate, with their types."""
    annotations = [inspect.get_annotations(base) for base in reversed(kind.__mro__)]
    return {key: annotation for own in annotations for key, annotation in own.items() if key.endswith("_")}


def _hash_config(config: dict[str, Any]) -> str:
    rest = {key: value for key, value in config.items() if key != _HASH}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        what = f"it has no {CONFIG_FILE}" if folder.is_dir() else "it is not a folder"
        raise ArtefactError(
            f"{folder} is not a saved detector: {what}."
            if folder.exists()
            else f"There is no detector {str(folder)!r}: nothing is at that path."
        )
    try:
        config = read_json(path)
    except ValueError as error:
        raise ArtefactError(f"{path} is not the configuration of a detector ({error}).") from error
    fields: dict[str, Any] = config if isinstance(config, dict) else {}
    schema = fields.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise ArtefactError(f"{path} is not the configuration of a detector: it has no proper 'schema'.")
    if schema > _SCHEMA:  # checked first, because a newer configuration may hold anything
        raise ArtefactError(
            f"{folder} was made by a newer apood: it has schema {schema}, this one reads up to {_SCHEMA}."
        )
    given = _ABSENT | fields
    if wrong := [key for key, kind in _FIELDS.items() if not isinstance(given.get(key), kind)]:
        raise ArtefactError(f"{path} is not the configuration of a detector: it has no proper {wrong[0]!r}.")
    if _hash_config(fields) != fields[_HASH]:
        raise ArtefactError(f"{path} is not the one that was saved: its {_HASH} differs.")
    return fields


def _read_member_configs(folder: Path, config: dict[str, Any]) -> list[tuple[Path, dict[str, Any]]]:
    """Return the folders of the members with their configurations, whose hashes must be those in `config`."""
    found = []
    for number, digest in enumerate(config.get(_MEMBERS, [])):
        place = folder / _MEMBERS / str(number)
        own = _read_config(place)
        if own[_HASH] != digest:
            raise ArtefactError(f"{place} is not the member that was saved with {folder}: its {_HASH} differs.")
        found.append((place, own))
    return found


def _read_tensors(path: Path, config: dict[str, Any]) -> dict[str, Tensor]:
    if not path.is_file():
        raise ArtefactError(f"{path.parent} is incomplete: {path.name} is missing.")
    if path.stat().st_size > _find_most_bytes(config):
        raise ArtefactError(f"{path} is not the file that was saved: it is far larger than its tensors.")
    content = path.read_bytes()  # read once, so that what is hashed is what is used
    if hashlib.sha256(content).hexdigest() != config["sha256"]:
        raise ArtefactError(f"{path} is not the file that was saved: its sha256 differs (truncated or changed).")
    try:
        # copied, because tensors in the file are not aligned, and the rounding of a sum depends on alignment
        tensors = {key: tensor.clone() for key, tensor in parse_tensors(content).items()}
    except SafetensorError as error:
        raise ArtefactError(f"{path} cannot be read: {error}.") from error
    found = {key: {"shape": list(t.shape), "dtype": str(t.dtype)} for key, t in tensors.items()}
    if found != config["tensors"]:
        raise ArtefactError(
            f"The tensors in {path} do not have the names, shapes and dtypes that {CONFIG_FILE} states."
        )
    return tensors


def _find_most_bytes(config: dict[str, Any]) -> int:
    """Return a size that the file of the tensors in a configuration cannot exceed."""
    try:
        sizes = (math.prod(map(operator.index, entry["shape"])) for entry in config["tensors"].values())
        return _HEADER_BYTES + _NUMBER_BYTES * sum(sizes)
    except (KeyError, TypeError):  # of a configuration that describes no tensors
        return _HEADER_BYTES


def describe_detector(detector: Detector) -> dict[str, Any]:
    """Return the method and the constructor's arguments as JSON."""
    parameters = detector.get_params(deep=False)
    return name_class(type(detector)) | {"parameters": {key: to_json(value) for key, value in parameters.items()}}


def build_detector(description: dict[str, Any]) -> Detector:
    """Return the detector that `describe_detector` described, perhaps in an older version, not fitted."""
    kind = find_saved_class(description["method"], description.get(_CLASS))
    stored = {
        kind.renamed_parameters.get(key, key): from_json(value) for key, value in description["parameters"].items()
    }
    return kind(**{**kind.absent_parameters, **stored})


def to_json(value: Any) -> Any:
    """Return `value` as JSON, which knows neither infinities nor detectors."""
    if isinstance(value, Detector):
        return describe_detector(value)
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def from_json(value: Any) -> Any:
    """Return the value that `to_json` converted."""
    match value:
        case {"float": str() as text, **rest} if not rest:
            return float(text)
        case {"method": str(), "parameters": dict(), **rest} if rest.keys() <= {_CLASS}:
            return build_detector(value)
        case list():
            return [from_json(item) for item in value]
        case _:
            return value
