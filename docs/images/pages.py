"""Take the screenshots of an explanation and a report: `python docs/images/pages.py` writes docs/images/*-page.png.

It makes the texts of docs/getting-started.md, and fits a detector to them with MiniLM, which the demo extra installs.
The browser is that of `make test-partners`.
"""

import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from apood import APOOD, KNN, Fusion, TextDetector
from apood.cli.app import main
from apood.experiments.demo_sources import find_minilm

__all__: list[str] = []

FOLDER = Path(__file__).parent
SHOTS = [
    # name, page, width, height, colour scheme
    ("explanation-page", "why.html", 700, 400, "light"),
    ("explanation-phone-dark-page", "why.html", 390, 600, "dark"),
    ("report-page", "report.html", 800, 1250, "light"),
    ("report-phone-dark-page", "report.html", 390, 1250, "dark"),
]


def make_pages() -> None:
    """Write the texts, a detector, why.html and report.html into the working directory."""
    tour = (FOLDER.parent / "getting-started.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", tour, re.DOTALL)
    assert block is not None
    Path("texts.py").write_text(block[1], encoding="utf-8")
    runpy.run_path("texts.py")
    members = Fusion([APOOD(steps=100, device="cpu"), KNN(k=3)])
    train = Path("train.txt").read_text(encoding="utf-8").splitlines()
    detector = TextDetector(find_minilm(), members).fit(train)
    detector.save("detector")
    injected = Path("injected.txt").read_text(encoding="utf-8").splitlines()
    refused = next(text for text, sign in zip(injected, detector.predict(injected), strict=True) if sign == -1)
    run("explain", "detector", refused, "--format", "html", "--out", "why.html")
    sets = ["--id", "test.txt", "--ood", "other=other.txt", "--ood", "injected=injected.txt", "--new", "today=new.txt"]
    run("report", "detector", *sets, "--out", "report.html", "--cache", "cache")


def run(*arguments: str) -> None:
    """Run a command of apood."""
    sys.argv = ["apood", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code


def take_screenshots() -> None:
    """Write all screenshots, with few colours so that they stay small."""
    from PIL import Image

    python = Path(sys.prefix, "partners", "browser", "bin", "python")
    script = FOLDER.parents[1] / "tests" / "partners" / "take_screenshot.py"
    for name, page, *settings in SHOTS:
        picture = FOLDER / f"{name}.png"
        subprocess.run([str(part) for part in (python, script, page, picture, *settings)], check=True)
        with Image.open(picture) as taken:
            small = taken.convert("RGB").quantize(64)
        small.save(picture, optimize=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_pages()
        take_screenshots()
