"""The texts and the encoder of benchmarks that measure the default on the corpora of `apood bench text`."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from apood.encoders.text.encoder import TextEncoder
from apood.experiments.text.declaration import read_declaration
from apood.experiments.text.texts import OOD, make_sets

__all__ = ["TextSets", "open_corpora"]


class TextSets(NamedTuple):
    """A corpus and the model that reads it.

    Attributes:
        texts: the texts of each set, by its role.
        encoder: the encoder; it cuts long texts, as `apood bench text` does.
    """

    texts: dict[str, list[str]]
    encoder: TextEncoder

    @property
    def ood(self) -> list[str]:
        """The roles of the OOD sets."""
        return [role for role in self.texts if role.startswith(OOD)]


def open_corpora(module: str, arguments: list[str]) -> Iterator[TextSets]:
    """Yield the corpora of `CORPORA DATA NAME=MODEL_FOLDER CORPUS ...`, and print the command and their headings."""
    declared, data, model, *names = arguments
    declaration = read_declaration(Path(declared), Path(data))
    label, _, folder = model.partition("=")
    files = f"{Path(declared).name} {Path(data).name} {label}={Path(folder).name}"
    print(f"Made by `python -m {module} {files} {' '.join(names)}`.\n")
    for name in names:
        corpus = declaration.corpora[name]
        sets = make_sets(corpus, declaration.salt, declaration.limits).items
        texts = {role: [str(text) for text in own] for role, own in sets.items()}
        print(f"## {label}, {name}\n")
        yield TextSets(texts, TextEncoder(folder, max_tokens=corpus.max_tokens, on_long="beginning"))
        print(flush=True)
