"""Sounds from files, folders, patterns and archives, and the reasons why some cannot be used."""

import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_audio import RATE, noise, tone

from apood.data.inputs import holds_sounds
from apood.data.record import BadRecord, Record, Sound
from apood.data.sounds import read_sounds
from apood.support.errors import InputError


def write(path: Path, samples: Any, rate: int = RATE, **options: Any) -> str:
    soundfile = pytest.importorskip("soundfile")
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate, **options)
    return str(path)


def archive(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def sounds_of(*inputs: str, **options: Any) -> list[Sound]:
    records = list(read_sounds(inputs, **options))
    assert all(isinstance(record, Record) for record in records), records
    return [record.item for record in records]


def reason(*inputs: str, **options: Any) -> str:
    """Return the reason of the only record, which is bad: a sentence that begins with its place."""
    (record,) = read_sounds(inputs, **options)
    assert isinstance(record, BadRecord)
    assert record.reason.lower().startswith(record.place.lower())
    assert record.reason.endswith(".")
    return record.reason


def test_a_folder_of_other_files_is_not_searched_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apood.data.inputs._MOST_OTHERS", 20)
    for number in range(30):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(InputError, match=r"None of the first 20 files and folders in .* ends in \.flac or \.wav"):
        read_sounds([str(tmp_path)])


def test_files_keep_samples_rate_and_the_name_of_their_folder(tmp_path: Path) -> None:
    samples = tone(0.5, 0)
    for path in (tmp_path / "fan" / "a.wav", tmp_path / "fan" / "b.FLAC"):
        (sound,) = sounds_of(write(path, samples))
        assert sound.samples.dtype == np.float32
        assert (sound.rate, sound.label) == (RATE, "fan")
        np.testing.assert_allclose(sound.samples, samples, atol=2**-15)


def test_folders_are_searched_in_depth_and_sorted(tmp_path: Path) -> None:
    for name in ("pump/2.wav", "fan/day/3.flac", "fan/1.wav", "pump/.hidden.wav"):
        write(tmp_path / name, tone(0.1, 0))
    (tmp_path / "fan" / "notes.txt").write_text("no sound")
    records = list(read_sounds([str(tmp_path)]))
    assert [Path(record.place.strip("'")).relative_to(tmp_path).as_posix() for record in records] == [
        "fan/1.wav",
        "fan/day/3.flac",
        "pump/2.wav",
    ]
    assert [sound.label for sound in sounds_of(str(tmp_path))] == ["fan", "day", "pump"]


def test_patterns_stand_for_what_they_match_in_order(tmp_path: Path) -> None:
    for name in ("b/x.wav", "a/y.wav", "a/z.flac"):
        write(tmp_path / name, tone(0.1, 0))
    assert [sound.label for sound in sounds_of(str(tmp_path / "*" / "*.wav"))] == ["a", "b"]
    assert len(sounds_of(str(tmp_path / "*"))) == len(sounds_of(str(tmp_path / "**"))) == 3, "each file once"
    with pytest.raises(InputError, match="No sounds match"):
        read_sounds([str(tmp_path / "*.npz")])


def test_archives_hold_many_sounds(tmp_path: Path) -> None:
    floats = np.stack([tone(0.2, 0), noise(0.2, 1)])
    whole = (floats * 32767).astype(np.int16)
    path = archive(tmp_path / "a.npz", audio=whole, sr=16_000, label=["tone", "noise"])
    first, second = read_sounds([path])
    assert first.place == f"row 1 of {path!r}"
    assert [first.item.label, second.item.label] == ["tone", "noise"]
    assert first.item.rate == 16_000
    np.testing.assert_allclose(second.item.samples, floats[1], atol=1e-4)
    for dtype in (np.float64, np.float16):
        own = sounds_of(archive(tmp_path / "b.npz", audio=floats.astype(dtype), sr=np.array([RATE])))
        assert [sound.label for sound in own] == [None, None]
        np.testing.assert_allclose(own[0].samples, floats[0], atol=1e-3)


def test_archives_need_no_soundfile_and_files_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.wav", tone(0.1, 0))
    stored = archive(tmp_path / "a.npz", audio=tone(0.1, 0)[None], sr=RATE)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert len(sounds_of(stored)) == 1
    with pytest.raises(InputError, match=r"needs the package soundfile: pip install 'apood\[audio\]'"):
        read_sounds([stored, path])


def test_channels_are_averaged(tmp_path: Path) -> None:
    left, right = tone(0.1, 0), noise(0.1, 1)
    (sound,) = sounds_of(write(tmp_path / "a.wav", np.stack([left, right], 1), subtype="FLOAT"))
    np.testing.assert_allclose(sound.samples, (left + right) / 2, atol=1e-6)


def test_sounds_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.wav").touch()
    assert "is an empty file" in reason(str(tmp_path / "empty.wav"))
    (tmp_path / "text.wav").write_text("this is no sound at all")
    assert "cannot be read as audio" in reason(str(tmp_path / "text.wav"))
    whole = Path(write(tmp_path / "whole.flac", noise(1, 0))).read_bytes()
    (tmp_path / "half.flac").write_bytes(whole[: len(whole) // 2])
    assert "half.flac" in reason(str(tmp_path / "half.flac"))
    assert "has no samples" in reason(write(tmp_path / "none.wav", np.zeros(0)))
    assert "is silent" in reason(write(tmp_path / "zero.wav", np.zeros(1000)))
    assert "is silent" in reason(write(tmp_path / "constant.wav", np.full(1000, 0.25)))
    broken = tone(0.1, 0)
    broken[7] = np.nan
    assert "not a finite number, at position 7" in reason(write(tmp_path / "nan.wav", broken, subtype="FLOAT"))
    assert "up to 1000, but" in reason(archive(tmp_path / "scale.npz", audio=np.array([[0.0, 1000.0]]), sr=RATE))


def test_the_needed_rate_and_length_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", tone(0.1, 0))
    assert "has 8,000 samples per second, but 16,000 are needed" in reason(path, rate=16_000)
    assert "it has 800 samples, and at least 801 are needed" in reason(path, least_samples=801)
    assert len(sounds_of(path, rate=RATE, least_samples=800)) == 1


def test_archives_with_other_arrays_are_named(tmp_path: Path) -> None:
    for arrays, message in (
        ({"sr": RATE, "wave": [0.5]}, "has no array 'audio': there are 'sr', 'wave'"),
        ({"audio": [[0.5]]}, "has no array 'sr'"),
        ({"audio": [0.5], "sr": RATE}, "got float64 of shape [1]"),
        ({"audio": [[1]], "sr": RATE}, "got int64"),
        ({"audio": [[0.5]], "sr": [1, 2]}, "one number of samples per second"),
        ({"audio": [[0.5]], "sr": 0}, "one number of samples per second"),
        ({"audio": [[0.5]], "sr": RATE, "label": ["a", "b"]}, "has 2 labels for 1 sounds"),
        ({"audio": np.array([[None]], dtype=object), "sr": RATE}, "cannot be read as an npz archive"),
        ({"audio": 0.5, "sr": RATE}, "got float64 of shape []"),
        ({"audio": np.zeros((3, 0)), "sr": RATE}, "has no values in the rows of 'audio'"),
        ({"audio": [[0.5]], "sr": np.inf}, "one number of samples per second"),
        ({"audio": [[0.5]], "sr": np.nan}, "one number of samples per second"),
        ({"audio": [[0.5]], "sr": 1e300}, "one number of samples per second"),
        ({"audio": [[0.5]], "sr": RATE, "label": "a"}, "has labels of shape [] for 1 sounds"),
        ({"audio": [[0.5]], "sr": RATE, "label": ["\ud800"]}, "cannot be read as an npz archive"),
        ({"audio": [[0.5, 1e300]], "sr": RATE}, "not a finite number, at position 1"),
    ):
        assert message in reason(archive(tmp_path / "a.npz", **arrays))


def test_labels_of_bytes_are_texts(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", audio=np.stack([tone(0.1, 0)]), sr=RATE, label=[b"fan"])
    assert [sound.label for sound in sounds_of(path)] == ["fan"]


def test_arrays_by_columns_are_read_too(tmp_path: Path) -> None:
    floats = np.stack([tone(0.1, 0), noise(0.1, 1)])
    path = archive(tmp_path / "a.npz", audio=np.asfortranarray(floats), sr=RATE)
    np.testing.assert_array_equal([sound.samples for sound in sounds_of(path)], floats.astype(np.float32))
    assert not sounds_of(archive(tmp_path / "b.npz", audio=np.zeros((0, 5)), sr=RATE))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("(1, 999999999999)", "fewer values than the shape"),
        ("(999999999999, 0)", "no values in the rows"),
        ("(-1, 4)", "impossible shape"),
        ("(" * 4000, "no proper header"),
        ("4", "no proper header"),
        (f"(1, {'9' * 5000})", "no proper header"),
    ],
)
def test_archives_with_impossible_headers_are_refused(tmp_path: Path, shape: str, message: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    path = archive(tmp_path / "a.npz", sr=RATE)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("audio.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(16))
    assert message in reason(path)


def test_a_sound_above_the_limit_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npz")
    np.savez_compressed(path, audio=np.zeros((1, 200 << 20), np.int16), sr=RATE)
    tracemalloc.start()
    try:
        assert "limit for one record is 256 MiB" in reason(path)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_an_audio_file_above_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apood.data.sounds.MOST_SOUND_BYTES", 1000)
    message = reason(write(tmp_path / "a.flac", tone(0.1, 0)))
    assert "takes 3,200 bytes" in message and "split it into shorter files" in message


def test_a_broken_archive_is_named(tmp_path: Path) -> None:
    for content in (b"", b"no archive", b"PK\x03\x04 cut"):
        (tmp_path / "a.npz").write_bytes(content)
        assert "cannot be read as an npz archive" in reason(str(tmp_path / "a.npz"))


def test_reading_goes_on_behind_bad_sounds(tmp_path: Path) -> None:
    write(tmp_path / "1.wav", tone(0.1, 0))
    (tmp_path / "2.wav").write_text("no sound")
    write(tmp_path / "3.wav", np.zeros(100))
    write(tmp_path / "4.wav", tone(0.1, 1))
    mixed = archive(tmp_path / "a.npz", audio=np.stack([tone(0.1, 0), 0 * tone(0.1, 0), tone(0.1, 2)]), sr=RATE)
    kinds = [type(record) for record in read_sounds([str(tmp_path), mixed])]
    assert kinds == [Record, BadRecord, BadRecord, Record, Record, BadRecord, Record]


def test_missing_inputs_are_refused_before_the_first_sound(tmp_path: Path) -> None:
    good = write(tmp_path / "sounds" / "a.wav", tone(0.1, 0))
    (tmp_path / "bare").mkdir()
    (tmp_path / "a.mid").touch()
    for inputs, message in [
        ([], "nothing to read"),
        ([good, str(tmp_path / "none.wav")], "There is no file or folder"),
        ([good, str(tmp_path / "bare")], "no audio files"),
        ([good, str(tmp_path / "a.mid")], "allowed are .wav, .flac, .npz and folders"),
    ]:
        with pytest.raises(InputError, match=message):
            read_sounds(inputs)


def test_inputs_with_sounds_are_recognised(tmp_path: Path) -> None:
    write(tmp_path / "sounds" / "deep" / "a.wav", tone(0.1, 0))
    (tmp_path / "bare").mkdir()
    for name in ("a.wav", "b.FLAC", "c.npz", "d/*.wav", str(tmp_path / "sounds"), str(tmp_path / "s*")):
        assert holds_sounds(name), name
    for name in ("a.txt", "-", "b.jsonl.gz", "*.txt", str(tmp_path / "bare"), str(tmp_path / "b*")):
        assert not holds_sounds(name), name
