"""The documentation is true: its code runs, its commands exist, its links lead somewhere.

The language of a fenced block says how it is checked:

- `python` is run. The blocks of a page share their names and a working directory, which is a new folder.
- `output` is what the `python` block before it prints: the same words, and numbers that differ by at most a tenth.
- `console` has commands after `$ `. An `apood` command is run in this process; of slow commands, and of those for a
  cluster (`--address`), only the options are checked. If output follows, its words must be the same; its numbers may
  differ, because a tiny model replaces the one that the page names. Output that begins with `Error:` means exit code 2,
  and with `Alarm` 3. The targets of `make` and the extras of `pip install` must exist. Other commands are not allowed.
- `toml` is a file for the commands that follow. Its first line is a comment with its name.
- `text`, `json`, `bibtex` and `diff` are not checked.

If a page runs `apood`, the working directory has `sentence-transformers/all-MiniLM-L6-v2`, a tiny random model whose
vocabulary are the words of the page, and JSON lines with texts of several kinds (`TEXTS`). The README gets the real
MiniLM, and the texts that the first block of docs/getting-started.md writes.
"""

import ast
import contextlib
import io
import json
import math
import random
import re
import shlex
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pytest
import torch
from cli_tables import COMMANDS, PAGE, find_section, list_options, make_table
from markdown_it import MarkdownIt
from markdown_it.token import Token
from typer.main import get_command
from typer.testing import CliRunner

from apood import APOOD, __version__
from apood.cli.app import app
from apood.detectors.ap_ood import detector as ap_ood
from apood.detectors.contract.registry import METHODS, detector_class

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "apood"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
README, TOUR, EXPLAIN = ROOT / "README.md", ROOT / "docs" / "getting-started.md", ROOT / "docs" / "explain.md"
RUN = [page for page in PAGES if page.name != "CHANGELOG.md"]
LANGUAGES = {"python", "output", "console", "toml", "text", "json", "bibtex", "diff"}
LARGEST_IMAGE = 150_000
README_LINES = 120
SLOW = ("demo", "bench", "serve", "proxy")  # or without an end

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
VOCABULARY = 2**14
WORDS = [f"word{i}" for i in range(24)]
TEXTS = {
    "train": (150, WORDS[:12]),
    "held-out": (60, WORDS[:12]),
    "test": (40, WORDS[:12]),
    "new": (3, WORDS),
    "news": (30, WORDS[12:]),
    "code": (30, WORDS[16:]),
    "outliers": (20, WORDS[10:]),
}
"""How many texts of which words are in `train.jsonl`, ..."""

NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d*)?(?:e[-+]?\d+)?")


def by_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def tokens_of(page: Path) -> list[Token]:
    """The Markdown of a page, inline pieces after the block that they belong to."""
    parser = MarkdownIt("commonmark").enable("table")
    return [
        part for token in parser.parse(page.read_text(encoding="utf-8")) for part in (token, *(token.children or []))
    ]


class Block(NamedTuple):
    """A fenced block."""

    language: str
    content: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    return [Block(t.info.strip(), t.content, (t.map or [0])[0] + 1) for t in tokens_of(page) if t.type == "fence"]


class Command(NamedTuple):
    """A line after `$ ` in a console block, and the output below it."""

    line: str
    output: str


def commands_of(block: Block) -> list[Command]:
    found: list[Command] = []
    for line in block.content.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], ""))
        elif line and not line.startswith("#"):
            assert found, f"line {block.line}: output before the first command"
            found[-1] = Command(found[-1].line, f"{found[-1].output}{line}\n")
    return found


def words(text: str) -> str:
    """The text without its numbers and its layout, which depends on them."""
    return " ".join(re.sub("[─━]+", "─", NUMBER.sub("#", text)).split())


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def make_model(folder: Path, vocabulary: list[str]) -> None:
    """A random BERT with one token a word."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    # a word has the same id, and so the same state, whatever other words a page has
    numbered = {"[PAD]": 0, "[UNK]": 1}
    taken = set(numbered.values())
    for word in vocabulary:
        place = crc32(word.encode()) % VOCABULARY
        while place in taken:
            place = (place + 1) % VOCABULARY
        taken.add(place)
        numbered[word] = place
    tokenizer = Tokenizer(models.WordLevel(numbered, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        initializer_range=0.5,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(folder)


@pytest.fixture
def working_directory(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a new folder, with a model and texts if the page needs them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for module in ("evaluation.cost", "support.progress"):  # on a busy machine, sentences about long work would follow
        monkeypatch.setattr(f"apood.{module}._MINUTE", math.inf)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if page in (README, TOUR, EXPLAIN):  # they show what the model itself says
        from apood.experiments.demo_sources import find_minilm

        (tmp_path / MODEL).parent.mkdir()
        (tmp_path / MODEL).symlink_to(find_minilm())
        if page == README:
            exec(next(block.content for block in blocks_of(TOUR) if block.language == "python"), {})
        return
    if not any(block.language == "console" and "$ apood" in block.content for block in blocks_of(page)):
        return
    spoken = re.findall(r"\w+|[^\w\s]", page.read_text(encoding="utf-8").lower())
    # a model is known by the name of its folder
    make_model(tmp_path / Path(MODEL).name, sorted({*WORDS, *spoken}))
    (tmp_path / MODEL).parent.mkdir()
    (tmp_path / MODEL).symlink_to(tmp_path / Path(MODEL).name)
    dice = random.Random(0)
    for name, (count, own) in TEXTS.items():
        texts = [" ".join(dice.choices(own, k=dice.randint(4, 8))) for _ in range(count)]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For matrices as small as here, threads that wait for each other cost more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def no_training_twice() -> Iterator[None]:
    """Train once what several pages show: AP-OOD's weights follow from the digest of its settings and data."""
    train, known = ap_ood.minimise, {}

    def minimise(parameters: list[torch.Tensor], *arguments: Any, run: str, **options: Any) -> Any:
        if run not in known:
            outcome = train(parameters, *arguments, run=run, **options)
            known[run] = [parameter.detach().clone() for parameter in parameters], outcome
        learnt, outcome = known[run]
        with torch.no_grad():
            for parameter, value in zip(parameters, learnt, strict=True):
                parameter.copy_(value)
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ap_ood, "minimise", minimise)
        yield


@pytest.mark.usefixtures("working_directory", "one_thread", "quick_processes", "no_training_twice")
@pytest.mark.parametrize("page", RUN, ids=by_name)
def test_what_a_page_shows_happens(page):
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks_of(page):
        where = f"{by_name(page)}:{block.line}"
        assert block.language in LANGUAGES, f"{where}: {block.language!r} says not what the block is for"
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile("\n" * block.line + block.content, where, "exec"), names)
            printed = output.getvalue()
        elif block.language == "output":
            assert words(printed) == words(block.content), where
            assert numbers(printed) == pytest.approx(numbers(block.content), rel=0.1, abs=0.02), where
        elif block.language == "toml":
            name = re.match(r"# (\S+\.toml)\n", block.content)
            assert name, f"{where}: the first line does not name the file"
            Path(name[1]).write_text(block.content, encoding="utf-8")
        elif block.language == "console":
            for command in commands_of(block):
                check_command(command, where)


def check_command(command: Command, where: str) -> None:
    program, *arguments = shlex.split(command.line, comments=True)
    if program == "apood":
        run_apood(arguments, command.output, where)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert set(arguments) <= set(targets), where
    elif program == "pip":
        assert arguments[0] == "install", where
    else:
        raise AssertionError(f"{where}: nobody checks that {program!r} works")


def run_apood(arguments: list[str], shown: str, where: str) -> None:
    given = None
    if "<" in arguments:
        *arguments, _, file = arguments
        given = Path(file).read_text(encoding="utf-8")
    if arguments[0] in SLOW or "--address" in arguments:  # nobody is there
        arguments.append("--help")
    result = CliRunner().invoke(app, arguments, input=given)
    expected = {"Error:": 2, "Alarm": 3}.get(shown.partition(" ")[0], 0)
    assert result.exit_code == expected, f"{where}: {result.output}"
    if shown:
        assert words(result.output) == words(shown), where
    else:
        assert not result.stderr, f"{where}: {result.stderr}"


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def anchors_of(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = [token.content for before, token in pairwise(tokens_of(page)) if before.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_links_lead_somewhere(page):
    targets = [str(t.attrs.get("href") or t.attrs["src"]) for t in tokens_of(page) if t.type in ("link_open", "image")]
    for target in targets:
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists() and found.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors_of(found), target


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_files_that_are_named_exist(page):
    for word in (word for token in tokens_of(page) if token.type == "code_inline" for word in token.content.split()):
        if re.fullmatch(r"(src|tests|docs|benchmarks)/[\w./*-]*", word):
            assert list(ROOT.glob(word.rstrip("/"))), word


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_extras_that_are_named_exist(page):
    named = re.findall(r"(?:apood|'\.)\[([\w,]+)\]", page.read_text(encoding="utf-8"))
    assert {extra for extras in named for extra in extras.split(",")} <= set(project()["optional-dependencies"])


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_tables_are_even(page):
    """A bar inside a cell would cut it in two."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n)+", prose, re.MULTILINE):
        assert len({row.replace("\\|", "").count("|") for row in table.splitlines()}) == 1, table


def test_images_are_small():
    images = [path for path in (ROOT / "docs" / "images").iterdir() if path.suffix == ".png"]
    assert images and max(image.stat().st_size for image in images) < LARGEST_IMAGE


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_of_every_command_are_those_of_its_help(command):
    section = find_section(PAGE.read_text(encoding="utf-8"), command)
    assert section, f"{command} has no section in docs/cli.md"
    assert make_table(COMMANDS[command]) in section, "run python tests/docs/cli_tables.py"


def test_options_that_are_named_exist():
    named = set(re.findall(r"--[a-z][a-z-]*", PAGE.read_text(encoding="utf-8")))
    commands = [get_command(app), *COMMANDS.values()]
    assert named <= {option for command in commands for option in list_options(command)} | {"--help"}


def test_every_parameter_of_ap_ood_is_explained():
    explained = {token.content for token in tokens_of(ROOT / "docs" / "method.md") if token.type == "code_inline"}
    assert set(APOOD().get_params()) <= explained


METHODS_PAGE = ROOT / "docs" / "methods.md"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_explained(method):
    detector = detector_class(method)()
    looks_at = ", ".join(sorted(detector.requires))
    assert f"| `{method}` | {looks_at} | {detector.aux} |" in METHODS_PAGE.read_text(encoding="utf-8")
    if method != APOOD.name:  # whose parameters have a page of their own
        explained = {token.content for token in tokens_of(METHODS_PAGE) if token.type == "code_inline"}
        assert set(detector.get_params(deep=False)) <= explained


def test_every_package_is_explained():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    section = page.partition("## Packages")[2].partition("## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == packages


GAP = "…"


def messages() -> list[str]:
    """Every text in the code, with a gap wherever a value is put into it."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(piece.value) if isinstance(piece, ast.Constant) else GAP for piece in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_messages_that_are_quoted_exist():
    """Gaps, numbers and the names of data and dtypes stand for whatever a message names in their place."""
    named = r"…|\d[\d.]*|\b(?:(?:ID|AUX)(?: data)?|tokens$|token_\w+|float16)\b"
    known = messages()
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r'\*\*"([^"]+)"', page.replace("\n", " "))
    assert len(quoted) > 10
    for quote in quoted:
        pattern = ".*".join(map(re.escape, re.split(named, quote)))
        assert any(re.search(pattern, message) for message in known), quote


def test_the_changelog_begins_with_this_version():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == __version__


def test_the_first_hour_is_short():
    """Decisions with marked words take three commands or six lines of Python; a comparison takes five more lines."""
    sections: dict[str, list[Block]] = {}
    for section in re.split("^## ", TOUR.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        fences = re.findall(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        sections[section.splitlines()[0]] = [Block(language, content, 0) for language, content in fences]
    commands = [command.line for block in sections["Three commands"] for command in commands_of(block)]
    assert [line.split()[1] for line in commands if line.startswith("apood ")] == ["build", "score", "explain"]
    lines = {
        name: [
            sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(block.content)))
            for block in blocks
            if block.language == "python"
        ]
        for name, blocks in sections.items()
    }
    assert sum(lines["Six lines of Python"]) == 6
    assert lines["Compare a method of your own"][-1] == 5, "after the method itself"


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) < README_LINES
