"""The tasks: which texts are ID, which are OOD, and which backbone looks at them.

The texts are not part of this project. They are expected as gzipped JSON lines in a folder with the layout of `SETS`:
public sets for research (XSum, CNN/DailyMail, Reddit TIFU, SAMSum, Reuters, C4; Europarl, WMT newstest, newsdiscuss,
Koran, IT strings, OpenSubtitles, ParaCrawl; a mixture from the Pile, tweets, annual reports, clinical notes, chat;
CLINC150). The task `demo` needs none of them: its texts come with every installation.
"""

import gzip
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from apood.experiments.demo_texts import demo_texts

__all__ = ["BACKBONES", "TASKS", "TUNED", "Task", "Texts", "read_texts"]

BACKBONES = ("minilm", "smollm2")
_MOST_TRAINING = 20_000  # sequences
_TEST_SHARE = 0.2  # of an ID set that comes in one piece
_AUX_TRAINING = 1000  # the rest is kept for validation
_SEED = 0


@dataclass(frozen=True)
class Files:
    """Where the texts of a task lie below the data folder; `test` None parts the training texts."""

    train: str
    test: str | None
    ood: Mapping[str, str]
    aux: str | None = None
    field: str = "text"


_SUMMARIZATION = Files(
    "summarization/xsum_train",
    "summarization/xsum_test",
    {name: f"summarization/{name}" for name in ("cnn_dailymail", "reddit_tifu", "samsum", "reuters")},
    "summarization/c4",
)
SETS = {
    "xsum": _SUMMARIZATION,
    "intent": Files(
        "intent/clinc150_train", "intent/clinc150_test", {"clinc_oos": "intent/clinc150_oos"}, "intent/wiki_aux"
    ),
    "pile": Files(
        "language_model/pile_mix",
        None,
        {name: f"language_model/{name}" for name in ("tweets", "annual_reports", "clinical_notes", "chat")},
    ),
    "europarl": Files(
        "translation/europarl_train",
        "translation/europarl_test",
        {name: f"translation/{name}" for name in ("newstest2014", "newsdiscusstest2015", "koran", "it", "subtitles")},
        "translation/paracrawl",
        field="en",
    ),
}


@dataclass(frozen=True)
class Task:
    """A backbone, an ID set, and how many tokens of a text it sees."""

    backbone: str
    texts: str
    max_tokens: int

    @property
    def name(self) -> str:
        """Short and good for a file: `smollm2-xsum-128`."""
        return f"{self.backbone}-{self.texts}-{self.max_tokens}"


TASKS = [
    *(
        Task(backbone, texts, tokens)
        for backbone in BACKBONES
        for texts, tokens in (("xsum", 128), ("xsum", 512), ("intent", 512), ("pile", 512), ("europarl", 512))
    ),
    Task("minilm", "demo", 96),
]

TUNED = ("minilm-demo-96", "minilm-intent-512", "smollm2-xsum-128", "smollm2-pile-512", "smollm2-intent-512")
"""The tasks that defaults were chosen on; all others were not looked at before the defaults were fixed."""


@dataclass(frozen=True)
class Texts:
    """The texts of a task; `aux` may be empty."""

    train: list[str]
    test: list[str]
    ood: dict[str, list[str]]
    aux: list[str]


def read_texts(name: str, data: Path) -> Texts:
    """The texts called `name` in `TASKS`."""
    if name == "demo":
        demo = demo_texts(_SEED)
        return Texts(list(demo.train), list(demo.test), {key: list(part) for key, part in demo.ood.items()}, [])
    files = SETS[name]
    shuffle = random.Random(_SEED).shuffle
    train = _lines(data, files.train, files.field)
    shuffle(train)
    if files.test is None:
        cut = round((1 - _TEST_SHARE) * len(train))
        train, test = train[:cut], train[cut:]
    else:
        test = _lines(data, files.test, files.field)
    ood = {key: _lines(data, path, files.field) for key, path in files.ood.items()}
    aux = [] if files.aux is None else _lines(data, files.aux, files.field)
    return Texts(train[:_MOST_TRAINING], test, ood, aux[:_AUX_TRAINING])


def _lines(data: Path, path: str, field: str) -> list[str]:
    with gzip.open(data / f"{path}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)[field] for line in file]
