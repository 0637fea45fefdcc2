"""Files that are small and cost much: pipes, bombs, deep nesting, sizes that lie. Each is refused soon, or is cheap.

A case is a file in the place of a good one, and the commands that read it. It breaks a promise if a command hangs, ends
with a traceback, or needs far more memory than the limits of apood allow.
"""

import contextlib
import gzip
import json
import os
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

from cli_calls import ALLOWED_CODES, call
from workshop import Material, Tally, describe_refusal, import_heavy, measure_memory, watch

__all__ = ["break_limits"]

MOST_MEMORY = 3 << 29
"""Bytes above those of the idle process that a command may need: a few times the largest record."""

_PATIENCE = 120.0  # seconds to write a file
_EMBED = "embed {} --model G/model --out O"
_COMMANDS = (_EMBED, "score G/detector {}")
_PLACES = {
    "detector/config.json": ("score D G/held-out", "inspect D", "calibrate D G/held-out", "fit G/store --out D"),
    "detector/model.safetensors": ("score D G/held-out", "inspect D"),
    "held-out/index.json": ("score G/detector D", "inspect D", "fit D --out O --method knn", _EMBED.replace("O", "D")),
    "held-out/shard-00000.safetensors": ("score G/detector D", "inspect D --verify", "fit D --out O --method knn"),
    "model/config.json": ("embed G/texts.txt --model D --out O", "score G/detector G/texts.txt --model D"),
    "model/tokenizer.json": ("embed G/texts.txt --model D --out O",),
    "model/tokenizer_config.json": ("embed G/texts.txt --model D --out O",),
    "model/model.safetensors": ("embed G/texts.txt --model D --out O",),
    "model/model.safetensors.index.json": ("embed G/texts.txt --model D --out O",),
    "model/generation_config.json": ("embed G/texts.txt --model D --out O",),
}
"""Files inside the good material, and commands that read them; D stands for the folder of the file."""

Write = Callable[[Path, int], None]


def _write_zeros_line(path: Path, size: int) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(size >> 20):
            file.write(b"a" * (1 << 20))


def _write_npz(path: Path, shape: tuple[int, ...], held: int) -> None:
    """Write an archive whose array has a header of this `shape`, and `held` bytes."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("audio.npy", "w", force_zip64=True) as file:
            file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
            for _ in range(held >> 20):
                file.write(bytes(1 << 20))
        archive.writestr("sr.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 54) + _SCALAR.ljust(53) + b"\n" + bytes(8))


_SCALAR = b"{'descr': '<i8', 'fortran_order': False, 'shape': (), }"[:53]


def _write_parquet(path: Path, texts: list[str], *, dictionary: bool) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"text": pyarrow.array(texts, pyarrow.large_string())})
    pyarrow.parquet.write_table(
        table, path, compression="zstd", use_dictionary=dictionary, dictionary_pagesize_limit=1 << 30
    )


_INPUTS: dict[str, tuple[str, Write]] = {
    "a line in gz that unpacks": ("bomb.jsonl.gz", lambda path, size: _write_zeros_line(path, 100 * size << 20)),
    "a table in gz with one cell": ("bomb.csv.gz", lambda path, size: _write_zeros_line(path, 100 * size << 20)),
    "a text in gz that unpacks": ("bomb.txt.gz", lambda path, size: _write_zeros_line(path, 100 * size << 20)),
    "an npz that unpacks": ("bomb.npz", lambda path, size: _write_npz(path, (1, 25 * size << 20), 100 * size << 20)),
    "an npz of a huge shape": ("shape.npz", lambda path, size: _write_npz(path, (10**12 * size, 10**6), 1 << 20)),
    "an npz of empty rows": ("rows.npz", lambda path, size: _write_npz(path, (10**12 * size, 0), 0)),
    "one large value in Parquet": (
        "page.parquet",
        lambda path, size: _write_parquet(path, ["a" * (150 * size << 20)], dictionary=False),
    ),
    "one value of Parquet in many rows": (
        "rows.parquet",
        lambda path, size: _write_parquet(path, ["a" * (20 << 20)] * 200 * size, dictionary=True),
    ),
    "many large values in Parquet": (
        "values.parquet",
        lambda path, size: _write_parquet(
            path, [f"{i}" + "a" * (4 << 20) for i in range(200)] * size, dictionary=False
        ),
    ),
    "tags without an end": ("tags.sgm", lambda path, size: _fill(path, b"<seg ", 200_000 * size)),
    "segments without an end": ("ends.sgm", lambda path, size: _fill(path, b"<seg>", 200_000 * size)),
    "character references": ("references.sgm", lambda path, size: _fill(path, b"&#" + b"9" * 500, 2_000 * size)),
    "quotes": ("quotes.csv", lambda path, size: _fill(path, b'"a""', 200_000 * size, b"text\n")),
    "lines of quotes": ("lines.csv", lambda path, size: _fill(path, b'"\n', 20_000 * size, b"text\n")),
    "escapes": ("escapes.jsonl", lambda path, size: _fill(path, rb"\ud800", 200_000 * size, b'{"text": "', b'"}\n')),
    "many keys": ("keys.jsonl", lambda path, size: _fill(path, b'"a":1,', 300_000 * size, b"{", b'"text":"b"}\n')),
    "deep lists": ("deep.jsonl", lambda path, size: _fill(path, b"[", 500_000 * size, b'{"text":')),
    "a number of many digits": (
        "digits.jsonl",
        lambda path, size: _fill(path, b"9", 500_000 * size, b'{"text":', b"}"),
    ),
    "empty lines": ("empty.txt", lambda path, size: _fill(path, b"\n", 20_000 * size)),
    "white space": ("white.txt", lambda path, size: _fill(path, b" \t\xc2\xa0", 300_000 * size)),
    "combining marks": ("marks.txt", lambda path, size: _fill(path, "a\u0300\u0301".encode(), 100_000 * size)),
    "one long word": ("word.txt", lambda path, size: _fill(path, b"a", 1_000_000 * size)),
}


def _fill(path: Path, part: bytes, times: int, before: bytes = b"", after: bytes = b"") -> None:
    path.write_bytes(before + part * times + after)


_CONFIGURATIONS = [
    {"num_hidden_layers": 10**7}, {"hidden_size": 10**9}, {"intermediate_size": 10**12}, {"vocab_size": 10**10},
    {"max_position_embeddings": 10**12}, {"num_attention_heads": 10**9}, {"num_labels": 10**9},
    {"num_hidden_layers": 10**5000}, {"num_hidden_layers": -1}, {"hidden_size": 0}, {"hidden_size": "9" * 5000},
    {"type_vocab_size": 10**11}, {"id2label": {str(i): str(i) for i in range(200_000)}}, {"model_type": "gpt2"},
    {"auto_map": {"AutoModel": "evil.Model"}}, {"_attn_implementation": "kernels-community/flash"},
    {"pad_token_id": 10**9},
    {"quantization_config": {"quant_method": "fetched"}}, {"architectures": ["A" * 10**6]}, {"model_type": ["bert"]},
]  # fmt: skip


def _write_in_place(rng: random.Random, place: str, folder: Path, size: int) -> str:
    """Replace or damage one file of the material, and return how."""
    path = folder / Path(place).name
    kind = rng.choice(["pipe", "deep", "digits", "header", "configuration", "link to itself", "huge", "socket"])
    if kind == "configuration" and place == "model/config.json":
        setting = rng.choice(_CONFIGURATIONS)
        path.write_text(_dump(json.loads(path.read_text(encoding="utf-8")) | setting), encoding="utf-8")
        return f"{str(setting)[:60]}"
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        import socket

        with contextlib.chdir(folder):  # the path of a socket must be short
            socket.socket(socket.AF_UNIX).bind(path.name)
    elif kind == "link to itself":
        path.symlink_to(path)
    elif kind == "header":
        path.write_bytes(struct.pack("<Q", rng.choice((2**63, 2**40, 10**8, 0))) + b"{" * 100)
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(size << 36)  # a sparse file
    else:
        _fill(path, b"9" if kind == "digits" else b'{"a":' if rng.random() < 0.5 else b"[", 300_000 * size)
    return kind


def _dump(config: dict[str, object]) -> str:
    """Return JSON in which integers may have more digits than Python prints by itself."""
    import sys

    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(config)
    finally:
        sys.set_int_max_str_digits(before)


def break_limits(count: int, seed: int, folder: Path) -> Tally:
    """Give `count` costly files to commands, and tally what became of them."""
    import_heavy()
    material, rng, tally = Material.make(folder / "good"), random.Random(seed), Tally()
    good, place = material.folder, folder / "place"
    idle = watch(measure_memory).value
    inputs, places = list(_INPUTS), list(_PLACES)
    rng.shuffle(inputs)
    for number in range(count):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        size = rng.choice((1, 1, 2, 3))
        if number % 2:
            what = places[number // 2 % len(places)]
            own = place / Path(what).parent
            shutil.copytree(good / Path(what).parent, own)
            shown = f"{what}: {_write_in_place(rng, what, own, size)}"
            command = rng.choice(_PLACES[what]).replace(" D", f" {own}").format(good / "texts.txt")
        else:
            what = inputs[number // 2 % len(inputs)]
            name, write = _INPUTS[what]
            watch(lambda write=write, path=place / name, size=size: write(path, size), _PATIENCE)  # it needs memory
            shown = f"{what} (size {size})"
            command = rng.choice(_COMMANDS).format(place / name) + rng.choice(("", " --skip-bad"))
            if name.endswith(".parquet"):  # gigabytes of text take long, whatever holds them
                command = f"{_EMBED.format(place / name)} --limit 2"
        words = [word.replace("G/", f"{good}/") if word != "O" else str(place / "out") for word in command.split()]
        ending = watch(lambda words=words: call(words, place))
        shown = f"{shown}: apood {' '.join(words)}"
        if ending.code is None:
            tally.note("hangs", f"hangs: {shown}")
        elif "Traceback (most recent call last)" in ending.printed or ending.code not in ALLOWED_CODES:
            tally.note("tracebacks", f"exit {ending.code}: {shown}\n{ending.printed[-700:]}")
        elif ending.peak > idle + MOST_MEMORY:
            tally.note("bombs", f"{(ending.peak - idle) >> 20} MiB more than idle: {shown}\n{ending.printed[-300:]}")
        else:
            tally.note(describe_refusal(ending.printed) if ending.code else "done")
    return tally
