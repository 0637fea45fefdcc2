"""Sounds from audio files, folders of them and npz archives, one after the other."""

import itertools
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apood.data.record import BadRecord, Record
from apood.support.errors import InputError

__all__ = ["SOUND_ENDINGS", "Sound", "holds_sounds", "read_sounds", "refusal"]

_FILE_ENDINGS = (".wav", ".flac")
_ARCHIVE_ENDING = ".npz"
SOUND_ENDINGS = (*_FILE_ENDINGS, _ARCHIVE_ENDING)
"""The endings of files with sounds."""

_SILENCE = 1e-6  # standard deviation, of full scale: 120 dB below it
_LOUDEST = 2.0  # floats overshoot 1 a little after resampling; far above it they are on another scale


@dataclass(frozen=True, eq=False)
class Sound:
    """Mono samples, float32, with full scale at ±1; the rate is in samples a second."""

    samples: NDArray[np.float32]
    rate: int
    label: str | None = None


def holds_sounds(name: str) -> bool:
    """Whether an input is for `read_sounds`: by its ending, or by what lies in a folder or matches a pattern."""
    path = Path(name)
    if path.is_dir():
        return next(_audio_files(path), None) is not None
    return path.suffix.lower() in SOUND_ENDINGS or any(map(holds_sounds, _matches(name)))


def read_sounds(
    inputs: Sequence[str], *, rate: int | None = None, least_samples: int = 1
) -> Iterator[Record | BadRecord]:
    """The sounds of all inputs in order, read as they are asked for.

    An input is one of these, or a pattern like `"recordings/*/*.wav"` that matches some, in alphabetical order:

    - a .wav or .flac file, labelled with the name of the folder it lies in
    - a folder: all such files in it and in the folders below, sorted by path
    - an .npz archive with `audio` [sounds, samples], int16 or float, `sr`, and perhaps `label` [sounds]

    Several channels become one, their mean. Nothing is resampled: with `rate`, sounds of another rate are bad
    records, as are sounds of fewer than `least_samples`, silent ones and what cannot be read. What can be told
    without reading (a missing file, an unknown ending, an empty folder) is refused before the first sound.
    """
    if not inputs:
        raise InputError("There is nothing to read: give at least one audio file, folder or .npz archive.")
    paths = [path for name in inputs for path in _paths(name)]
    if any(path.suffix.lower() in _FILE_ENDINGS for path in paths):
        _soundfile(paths)
    wanted = partial(_checked, rate=rate, least_samples=least_samples)
    return itertools.chain.from_iterable(
        map(wanted, (_read_archive if path.suffix.lower() == _ARCHIVE_ENDING else _read_file)(path)) for path in paths
    )


def refusal(sound: Sound, place: str, *, rate: int | None, least_samples: int) -> str | None:
    """Why an encoder for that rate cannot take the sound, as a sentence about `place`, or None where it can."""
    samples = sound.samples
    place = place[0].upper() + place[1:]
    if rate is not None and sound.rate != rate:
        return (
            f"{place} has {sound.rate:,} samples a second, but {rate:,} are needed: "
            "resample it first, since nothing is resampled here."
        )
    if not len(samples):
        return f"{place} holds no samples."
    if not np.isfinite(samples).all():
        return f"{place} has a sample that is not a finite number, at position {int(np.isfinite(samples).argmin())}."
    if len(samples) < least_samples:
        return f"{place} is too short: it has {len(samples):,} samples, and at least {least_samples:,} are needed."
    if (loudest := float(np.abs(samples).max())) > _LOUDEST:
        return f"{place} goes up to {loudest:g}, but samples that are floats must lie between -1 and 1."
    # measured around its mean: a constant offset is no sound
    if float(samples.std(dtype=np.float64)) < _SILENCE:
        return f"{place} is silent."
    return None


def _checked(record: Record | BadRecord, rate: int | None, least_samples: int) -> Record | BadRecord:
    if isinstance(record, BadRecord):
        return record
    reason = refusal(record.item, record.place, rate=rate, least_samples=least_samples)
    return record if reason is None else BadRecord(record.place, reason)


def _paths(name: str) -> list[Path]:
    """The files that an input stands for."""
    path = Path(name)
    if path.is_dir():
        if files := sorted(_audio_files(path)):
            return files
        raise InputError(f"There are no audio files ({', '.join(_FILE_ENDINGS)}) in the folder {name!r}.")
    if not path.is_file():
        if not has_magic(name):
            raise InputError(f"There is no file or folder {name!r}.")
        matches = [match for match in _matches(name) if holds_sounds(match)]
        if not matches:
            raise InputError(f"No sounds match {name!r}: allowed are {', '.join(SOUND_ENDINGS)} and folders.")
        return [file for match in matches for file in _paths(match)]
    if path.suffix.lower() not in SOUND_ENDINGS:
        raise InputError(
            f"The format of {name!r} is not known by its ending: allowed are {', '.join(SOUND_ENDINGS)} and folders."
        )
    return [path]


def _matches(pattern: str) -> list[str]:
    """What a pattern matches that is no path itself."""
    if not has_magic(pattern) or Path(pattern).exists():
        return []
    return sorted(glob(pattern, recursive=True))  # noqa: PTH207 - that of Path takes no absolute patterns


def _audio_files(folder: Path) -> Iterator[Path]:
    return (
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in _FILE_ENDINGS and not path.name.startswith(".") and path.is_file()
    )


def _soundfile(paths: Sequence[Path]) -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: without the library that it wraps
        first = next(path for path in paths if path.suffix.lower() in _FILE_ENDINGS)
        raise InputError(f"Reading {str(first)!r} needs the package soundfile: pip install 'apood[audio]'.") from error
    return soundfile


def _read_file(path: Path) -> Iterator[Record | BadRecord]:
    soundfile = _soundfile([path])
    place = repr(str(path))
    try:
        if not path.stat().st_size:
            yield BadRecord(place, f"{place} is an empty file.")
            return
        with soundfile.SoundFile(path) as file:
            channels = file.read(dtype="float32", always_2d=True)
            whole = len(channels) == file.frames
            rate = int(file.samplerate)
    except (soundfile.SoundFileError, OSError, RuntimeError) as error:
        why = str(error).rstrip(".").splitlines()[-1:] or [type(error).__name__]
        yield BadRecord(place, f"{place} cannot be read as audio ({why[0]}).")
        return
    if not whole:
        yield BadRecord(place, f"{place} ends before all of its samples.")
        return
    yield Record(Sound(channels.mean(1, dtype=np.float32), rate, path.parent.name or None), place)


def _read_archive(path: Path) -> Iterator[Record | BadRecord]:
    place = repr(str(path))
    try:
        audio, rate, labels = _archive(path)
    except _BadArchiveError as error:
        yield BadRecord(place, f"{place} {error}.")
        return
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        why = str(error).rstrip(".").splitlines()[:1] or [type(error).__name__]
        yield BadRecord(place, f"{place} cannot be read as an npz archive ({why[0]}).")
        return
    scaled: Callable[[Any], NDArray[np.float32]] = _from_int16 if audio.dtype == np.int16 else _from_float
    for row, (samples, label) in enumerate(zip(audio, labels, strict=True), start=1):
        yield Record(Sound(scaled(samples), rate, label), f"row {row} of {place}")


class _BadArchiveError(Exception):
    """What an archive lacks, as the rest of a sentence that begins with its name."""


def _archive(path: Path) -> tuple[NDArray[Any], int, list[str] | list[None]]:
    """Samples, rate and labels."""
    with np.load(path, allow_pickle=False) as arrays:
        if lacking := [name for name in ("audio", "sr") if name not in arrays]:
            there = ", ".join(map(repr, arrays.files)) or "none"
            raise _BadArchiveError(f"has no array {lacking[0]!r}: there are {there}")
        audio, rates = arrays["audio"], arrays["sr"]
        labels = [str(label) for label in arrays["label"]] if "label" in arrays else [None] * len(audio)
    if audio.ndim != 2 or not (audio.dtype == np.int16 or audio.dtype.kind == "f"):
        raise _BadArchiveError(
            f"must hold 'audio' as int16 or float of shape [sounds, samples], got {audio.dtype} of shape "
            f"{list(audio.shape)}"
        )
    if rates.size != 1 or rates.dtype.kind not in "iuf" or not rates.item() >= 1:
        raise _BadArchiveError("must hold 'sr' as one number of samples a second")
    if len(labels) != len(audio):
        raise _BadArchiveError(f"has {len(labels)} labels for {len(audio)} sounds")
    return audio, int(rates.item()), labels


def _from_int16(samples: NDArray[np.int16]) -> NDArray[np.float32]:
    return samples.astype(np.float32) / np.float32(2**15)


def _from_float(samples: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    return samples.astype(np.float32)
