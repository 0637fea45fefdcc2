"""Reading sounds from audio files, folders of them and npz archives."""

import itertools
from collections.abc import Iterator, Sequence
from glob import has_magic
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apood.data.archives import MOST_SOUND_BYTES, Archive, BadFileError, open_archive
from apood.data.inputs import AUDIO_ENDINGS, SOUND_ENDINGS, find_files
from apood.data.record import BadRecord, Record, Sound, make_bad_record, make_sentence
from apood.support.checks import import_optional
from apood.support.cloud import CloudAddress, parse_place
from apood.support.errors import InputError

__all__ = ["find_sound_problem", "read_sounds"]

_SILENCE = 1e-6  # standard deviation; full scale is 1, so this is 120 dB below it
_HIGHEST_RATE = 1 << 31
_LOUDEST = 2.0  # resampled floats exceed 1 a little; values far above it are on another scale


def read_sounds(
    inputs: Sequence[str], *, rate: int | None = None, least_samples: int = 1
) -> Iterator[Record | BadRecord]:
    """Return an iterator over the sounds of all inputs in order. They are read when they are asked for.

    An input is one of these, or a pattern such as `"recordings/*/*.wav"` that stands for its matches, sorted by path:

    - a .wav or .flac file, whose label is the name of its folder
    - a folder: all such files in it and in the folders below, sorted by path
    - an .npz archive with `audio` [sounds, samples], int16 or float, `sr`, and optionally `label` [sounds]

    Several channels are averaged. Nothing is resampled: if `rate` is given, sounds of another rate are bad records.
    Sounds of fewer than `least_samples`, silent sounds and files that cannot be read are bad records, too. A missing
    file, an unknown ending or an empty folder raises an `InputError` before the first sound.
    """
    if not inputs:
        raise InputError("There is nothing to read: give at least one audio file, folder or .npz archive.")
    paths = [path for name in inputs for path in _find_sound_files(name)]
    if first := next((path for path in paths if path.suffix.lower() in AUDIO_ENDINGS), None):
        import_optional("soundfile", "audio", f"Reading {str(first)!r}")
    records = itertools.chain.from_iterable(map(_read_file, paths))
    return (_check(record, rate, least_samples) for record in records)


def find_sound_problem(sound: Sound, place: str, *, rate: int | None, least_samples: int) -> str | None:
    """Return why the sound cannot be used, as a sentence about `place`, or None if it can."""
    samples = sound.samples
    if rate is not None and sound.rate != rate:
        problem = (
            f"has {sound.rate:,} samples per second, but {rate:,} are needed: resample it first, since apood does not"
        )
    elif not len(samples):
        problem = "has no samples"
    elif not np.isfinite(samples).all():
        problem = f"has a sample that is not a finite number, at position {int(np.isfinite(samples).argmin())}"
    elif len(samples) < least_samples:
        problem = f"is too short: it has {len(samples):,} samples, and at least {least_samples:,} are needed"
    elif (loudest := float(np.abs(samples).max())) > _LOUDEST:
        problem = f"has samples up to {loudest:g}, but floats must lie between -1 and 1"
    elif float(samples.std(dtype=np.float64)) < _SILENCE:  # around the mean: a constant offset is not a sound
        problem = "is silent"
    else:
        return None
    return make_sentence(f"{place} {problem}")


def _check(record: Record | BadRecord, rate: int | None, least_samples: int) -> Record | BadRecord:
    if isinstance(record, BadRecord):
        return record
    problem = find_sound_problem(record.item, record.place, rate=rate, least_samples=least_samples)
    return record if problem is None else BadRecord(record.place, problem)


def _find_sound_files(name: str) -> list[Path]:
    if isinstance(parse_place(name), CloudAddress):
        raise InputError(
            f"Sounds are read from files of this machine, and {name} is in a cloud store: copy them first."
        )
    allowed = f"allowed are {', '.join(SOUND_ENDINGS)} and folders"
    files = find_files(name, AUDIO_ENDINGS)
    sounds = [file for file in files if file.suffix.lower() in SOUND_ENDINGS]
    if sounds:
        return sounds
    if Path(name).is_dir():
        raise InputError(f"There are no audio files ({', '.join(AUDIO_ENDINGS)}) in the folder {name!r}.")
    if Path(name).is_file():
        raise InputError(f"The format of {name!r} is not known by its ending: {allowed}.")
    if has_magic(name):
        raise InputError(f"No sounds match {name!r}: {allowed}.")
    raise InputError(f"There is no file or folder {name!r}.")


def _read_file(path: Path) -> Iterator[Record | BadRecord]:
    place = repr(str(path))
    try:
        if path.suffix.lower() in AUDIO_ENDINGS:
            yield Record(_read_audio(path), place)
        else:
            yield from (Record(sound, f"row {row} of {place}") for row, sound in enumerate(_read_archive(path), 1))
    except BadFileError as error:
        yield make_bad_record(place, str(error))


def _read_audio(path: Path) -> Sound:
    import soundfile

    try:
        if not path.stat().st_size:
            raise BadFileError("is an empty file")
        with soundfile.SoundFile(path) as file:
            size = file.frames * file.channels * 4
            if size > MOST_SOUND_BYTES:
                raise BadFileError(
                    f"takes {size:,} bytes in memory, but the limit for one record is {MOST_SOUND_BYTES >> 20} MiB: "
                    "split it into shorter files"
                )
            channels = file.read(dtype="float32", always_2d=True)
            frames, rate = file.frames, int(file.samplerate)
    except (soundfile.SoundFileError, OSError, RuntimeError) as error:
        why = str(error).rstrip(".").splitlines()[-1:] or [type(error).__name__]
        raise BadFileError(f"cannot be read as audio ({why[0]})") from error
    if len(channels) != frames:
        raise BadFileError("ends before all of its samples")
    return Sound(channels.mean(1, dtype=np.float32), rate, path.parent.name or None)


def _read_archive(path: Path) -> Iterator[Sound]:
    with open_archive(path) as archive:
        if missing := next((name for name in ("audio", "sr") if name not in archive.names), None):
            there = ", ".join(map(repr, archive.names)) or "none"
            raise BadFileError(f"has no array {missing!r}: there are {there}")
        shape, dtype = archive.describe("audio")
        if len(shape) != 2 or not (dtype == np.int16 or dtype.kind == "f"):
            raise BadFileError(
                f"must hold 'audio' as int16 or float of shape [sounds, samples], got {dtype} of shape {list(shape)}"
            )
        rates = archive.read("sr")
        if rates.size != 1 or rates.dtype.kind not in "iuf" or not 1 <= rates.item() <= _HIGHEST_RATE:
            raise BadFileError("must hold 'sr' as one number of samples per second")
        labels = _read_labels(archive, shape[0])
        for number, samples in enumerate(archive.iterate_rows("audio")):
            yield Sound(_scale(samples), int(rates.item()), labels[number] if labels else None)


def _read_labels(archive: Archive, count: int) -> list[str]:
    """Return the label of each sound; an empty list if the archive has none."""
    if "label" not in archive.names:
        return []
    array = archive.read("label")
    if array.ndim != 1 or len(array) != count:
        found = f"{len(array)} labels" if array.ndim == 1 else f"labels of shape {list(array.shape)}"
        raise BadFileError(f"has {found} for {count} sounds")
    labels = [label.decode() if isinstance(label, bytes) else str(label) for label in array]
    for label in labels:
        label.encode()  # raises UnicodeEncodeError, a ValueError, for half of a surrogate pair
    return labels


def _scale(samples: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what is too large for float32 is refused as not finite
        floats = samples.astype(np.float32)
    return floats / np.float32(2**15) if samples.dtype == np.int16 else floats
