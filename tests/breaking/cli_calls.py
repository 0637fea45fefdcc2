"""Random calls of the command line, most of them wrong: each ends with a sentence, never with a traceback or a hang."""

import os
import random
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from workshop import Material, Tally, describe_refusal, import_heavy, watch

__all__ = [
    "ALLOWED_CODES",
    "GOOD_CALLS",
    "TINY_CLASSIFIER",
    "TINY_TRANSLATOR",
    "break_cli",
    "call",
    "fill",
    "read_options",
]

ALLOWED_CODES = (0, 2, 3)  # 3: `apood watch` and its alarm
TINY_TRANSLATOR = (
    "--source-field source --target-field target --size tiny --vocabulary 48 --context 32 --batch-tokens 256 --beams 2"
)
TINY_CLASSIFIER = "--patch 16 --width 16 --blocks 1 --heads 2 --batch 4"

_WORDS = [
    "", " ", "-1", "0", "1", "2", "0.5", "0.95", "1.5", "nan", "inf", "-inf", "1e400", "true", "null", "NaN", "[]",
    "99999999999999999999", "9" * 5000, "-9223372036854775809", "abc", "é\udcff", "\x1b[31mred", "a b", "../..", "/",
    "/dev/null", "/proc/self/mem", "cuda", "cuda:99", "mps", "meta", "cpu", "auto", "float16", "int8", "text", "label",
    "x=1", "=", "seed=99999999999999999999", "k=0", "k=-1", "k=2", "beta=nan", "heads=1e9", "steps=0", "steps=-5",
    "members=[]", "normalize=none", "normalize=x", "device=meta", "device=cuda:7", "queries=1.5", "news=", "=store",
    "hf:nobody/nothing", "hf:", "s3://bucket/key", "http://localhost:1/x", "*", "**/*", "?", "[", "{text}", "{",
]  # fmt: skip
_METHODS = ["ap-ood", "knn", "mahalanobis", "msp", "entropy", "no-such", "length", "relative-mahalanobis"]
# Good calls of each command but `demo`, which takes a minute; G is the folder of good material, O a new place.
GOOD_CALLS = [
    "embed G/texts.jsonl --model G/model --out O --limit 5",
    "embed G/texts.txt --model G/model --out O --max-tokens 8 --dtype float16 --seed 1 --shuffle --limit 4",
    "embed G/sounds.npz --model G/model --out O",
    "fit G/store --out O --method knn --set k=2",
    "fit G/store --out O --method mahalanobis",
    "fit G/store --out O --method ap-ood --set steps=2 --set device=cpu",
    "fit G/texts.jsonl --model G/model --cache O.d --out O --fast",
    "calibrate G/detector G/held-out --accept 0.9",
    "score G/detector G/texts.jsonl",
    "score G/detector G/held-out --out O.csv",
    "score G/detector G/texts.csv --field text --out O.jsonl",
    "watch G/detector G/scores.jsonl --state O.json --every 7",
    "recalibrate G/detector G/reviewed.csv --out O --random-sample",
    "evaluate G/detector --id G/held-out --ood x=G/store",
    "audit G/many.txt --model G/model --cache O.d --top 5",
    "check G/detector --id G/held-out",
    "report G/detector --id G/held-out --ood x=G/odd.jsonl --new y=G/others.jsonl --foreign 2 --out O.html",
    "compare --id-train G/store --id-test G/held-out --ood x=G/held-out --method knn --splits 1 --out O",
    "compare G/texts.csv --out O",
    "select G/store --method knn --aux G/held-out --out O --jobs 1",
    "build G/texts.jsonl --model G/model --out O --method knn --accept 0.8",
    "build G/many.txt --model G/model --out O --fast --beginnings --chat whole --keep-stores O.d --hold-out 0.4",
    "explain G/detector word1",
    "explain G/detector G/texts.txt --format html --out O.html",
    "serve G/detector --port 0",
    "serve G/detector --port 0 --tokens G/tokens.txt --shadow --chat whole --deadline 2 --max-texts 3 --max-body 999",
    "proxy G/detector --port 0 --upstream http://127.0.0.1:9 --refusal-text no --other-parts ignore",
    "store merge G/store G/held-out --out O",
    "store split G/store --part a=0.5 --part b=0.5 --out O --seed 1",
    "store verify G/store G/held-out",
    "store stats G/store",
    f"train translator G/pairs.jsonl {TINY_TRANSLATOR} --steps 2 --out O",
    f"train audio-classifier G/sounds.npz {TINY_CLASSIFIER} --pretraining-steps 1 --steps 1 --out O",
    "bench score-ablation --data G --model G/model --seeds 1 --out O",
    "bench text run G/corpora.toml --model tiny=G/model --method mahalanobis --layers last --out O",
    "bench text report O --out O.md",
    "inspect G/detector",
    "inspect G/store --verify",
    "methods --json",
    "datasets xsum",
]


def break_cli(count: int, seed: int, folder: Path) -> Tally:
    """Make `count` random calls below `folder`, and tally how they ended."""
    import_heavy()
    material, rng, tally = Material.make(folder / "good"), random.Random(seed), Tally()
    good, odd, options = (
        [str(path) for path in material.folder.iterdir()],
        _make_odd_files(folder / "odd"),
        read_options(),
    )
    for number in range(count):
        place = folder / "calls" / str(number % 20)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        arguments = _keep_small(_draw_call(rng, options, good, odd, place))
        ending = watch(lambda words=arguments, place=place: call(words, place))
        shown = shlex.join(arguments)[:300]
        if ending.code is None:
            tally.note("hangs", f"hangs: apood {shown}")
        elif "Traceback (most recent call last)" in ending.printed or ending.code not in ALLOWED_CODES:
            tally.note("tracebacks", f"exit {ending.code}: apood {shown}\n{ending.printed[-700:]}")
        else:
            tally.note(describe_refusal(ending.printed) if ending.code else "done")
    return tally


def call(arguments: list[str], place: Path) -> None:
    """Run a command in this process, in the folder `place`, and exit. A server stops as soon as it has started."""
    from apood.cli import main

    os.chdir(place)  # some words are relative paths
    os.environ |= {"HF_HUB_OFFLINE": "1", "TERM": "dumb", "XDG_CACHE_HOME": str(place.parent / "user-cache")}
    if arguments[:1] in (["serve"], ["proxy"]):
        _stop_servers_at_once()
    sys.argv = ["apood", *arguments]
    main()


def _stop_servers_at_once() -> None:
    from apood.serving.http import server

    run_server = server.run_server

    def run_briefly(*arguments: Any, report: Any, **options: Any) -> None:
        def stop(address: str) -> None:
            report(address)
            os.kill(os.getpid(), signal.SIGTERM)

        run_server(*arguments, report=stop, **options)

    server.run_server = run_briefly


def _keep_small(arguments: list[str]) -> list[str]:
    """Return the arguments of a call without what takes minutes, as it should."""
    if arguments[:1] == ["select"]:  # a search of AP-OOD's settings
        return ["knn" if word == "ap-ood" else word for word in arguments]
    if arguments[:1] == ["train"]:  # a training of the default length
        first = ["--pretraining-steps", "1"] if arguments[1:2] == ["audio-classifier"] else []
        return [*arguments, *first, "--steps", "2"]
    return arguments


def _make_odd_files(folder: Path) -> list[str]:
    """Write files that are not what their names say, and return their paths."""
    folder.mkdir(parents=True)
    contents = {
        "empty.jsonl": b"",
        "empty.txt": b"",
        "deep.jsonl": b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        "digits.jsonl": b'{"text": "a", "n": ' + b"9" * 6000 + b"}\n",
        "surrogate.jsonl": b'{"text": "\\ud800 word1"}\n',
        "binary.jsonl": bytes(range(256)) * 20,
        "numbers.jsonl": b'{"text": 1}\n{"text": null}\n{"text": ["a"]}\n{"text": {"a": 1}}\n',
        "broken.csv": b'text\n"never closed\n' * 3,
        "nul.csv": b"text\n\x00\x00\n",
        "not.parquet": b"PAR1 but not really PAR1",
        "not.npz": b"PK\x03\x04 not really",
        "not.wav": b"RIFF\x00\x00\x00\x00WAVE",
        "bom16.txt": "word1 word2\n".encode("utf-16"),
        "plan.toml": b"a = [[[[[[1]]]]]]\nx = 99999999999999999999999\n",
        "deep.toml": b"a = " + b"[" * 3000 + b"]" * 3000,
        "broken.gz": b"\x1f\x8b\x08\x00garbage",
        "text.sgm": b"<doc><seg>a</seg></doc>" + b"<seg " * 2000,
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "folder.jsonl").mkdir()
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.jsonl")
    return [str(folder / name) for name in [*contents, "folder.jsonl", "dangling", "pipe.jsonl", "absent"]]


def read_options() -> dict[str, list[tuple[str, bool]]]:
    """Return the options of every command by its name, such as `store merge`, each with whether it is a flag."""
    from typer.main import get_command

    from apood.cli.app import app

    def read(group: Any, before: str) -> dict[str, list[tuple[str, bool]]]:
        found = {}
        for name in group.list_commands(None):
            command = group.get_command(None, name)
            if hasattr(command, "commands"):
                found |= read(command, f"{before}{name} ")
            else:
                found[f"{before}{name}"] = [
                    (param.opts[0], bool(getattr(param, "is_flag", False)))
                    for param in command.params
                    if "--" in param.opts[0]
                ]
        return found

    return read(get_command(app), "")


def fill(word: str, good: Path, out: str) -> str:
    """Return a word of a template with the places that its letters stand for."""
    return re.sub(r"\bG/", f"{good}/", re.sub(r"\bO\b", out, str(good) if word == "G" else word))


def _draw_call(
    rng: random.Random, options: dict[str, list[tuple[str, bool]]], good: list[str], odd: list[str], place: Path
) -> list[str]:
    """Return a good call in which something was replaced, added or left out."""
    out = str(place / rng.choice(["out", "a/b/c", "out.d"]))

    def draw_value() -> str:
        return rng.choice(rng.choice((good, odd, odd, _METHODS, _WORDS, _WORDS, _WORDS, [out])))

    template = rng.choice(GOOD_CALLS).split()
    own = next(options[" ".join(template[:size])] for size in (1, 2, 3) if " ".join(template[:size]) in options)
    words = [fill(word, Path(good[0]).parent, out) for word in template]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        change, position = rng.random(), rng.randrange(1, max(2, len(words)))
        if change < 0.6 and position < len(words):
            value = draw_value()
            words[position] = f"{words[position].split('=')[0]}={value}" if "=" in words[position] else value
        elif change < 0.9:
            option, is_flag = rng.choice(own)
            words += [option] if is_flag else [option, draw_value()]
        elif position < len(words):
            del words[position]
    # A nul byte cannot be part of a real command line.
    return [word.replace("\x00", "") for word in words]
