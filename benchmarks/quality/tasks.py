"""The tasks: ID, AUX and OOD texts, and the backbone that embeds them.

The texts are not part of this project. They are expected as gzipped JSON lines in a folder with the layout of `SETS`:
public sets for research (XSum, CNN/DailyMail, Reddit TIFU, SAMSum, Reuters, C4; Europarl, WMT newstest, newsdiscuss,
Koran, IT strings, OpenSubtitles, ParaCrawl; a mixture from the Pile, tweets, annual reports, clinical notes, chat;
CLINC150). The task `demo` needs none of them: its texts come with every installation.
"""

import gzip
import json
import random
from pathlib import Path
from typing import NamedTuple

from apood.experiments.demo_texts import make_demo_texts

__all__ = ["AUX", "BACKBONES", "OOD", "TASKS", "TEST", "TRAIN", "TUNED", "Task", "read_texts"]

TRAIN, TEST, AUX, OOD = "train", "test", "aux", "ood-"
BACKBONES = ("minilm", "smollm2")
_MOST = {TRAIN: 20_000, AUX: 1000}  # further AUX sequences are kept for validation
_TEST_SHARE = 0.2  # of an ID set that comes in one piece


def _list_files(folder: str, ood: str, **others: str) -> dict[str, str]:
    """Return the file of each set: those of `others`, and the names in `ood` with a prefix."""
    named = others | {f"{OOD}{name}": name for name in ood.split()}
    return {name: f"{folder}/{file}.jsonl.gz" for name, file in named.items()}


SETS = {
    "xsum": _list_files(
        "summarization", "cnn_dailymail reddit_tifu samsum reuters", train="xsum_train", test="xsum_test", aux="c4"
    ),
    "intent": _list_files("intent", "", train="clinc150_train", test="clinc150_test", aux="wiki_aux")
    | {f"{OOD}clinc_oos": "intent/clinc150_oos.jsonl.gz"},
    "pile": _list_files("language_model", "tweets annual_reports clinical_notes chat", train="pile_mix"),
    "europarl": _list_files(
        "translation",
        "newstest2014 newsdiscusstest2015 koran it subtitles",
        train="europarl_train",
        test="europarl_test",
        aux="paracrawl",
    ),
}


class Task(NamedTuple):
    """A backbone, the name of its texts, and the tokens of a text that it reads."""

    backbone: str
    texts: str
    max_tokens: int

    @property
    def name(self) -> str:
        """A name that can be used for files: `smollm2-xsum-128`."""
        return f"{self.backbone}-{self.texts}-{self.max_tokens}"


_SIZES = (("xsum", 128), ("xsum", 512), ("intent", 512), ("pile", 512), ("europarl", 512))
TASKS = [*(Task(backbone, *size) for backbone in BACKBONES for size in _SIZES), Task("minilm", "demo", 96)]

TUNED = ("minilm-demo-96", "minilm-intent-512", "smollm2-xsum-128", "smollm2-pile-512", "smollm2-intent-512")
"""The tasks that defaults were chosen on; the others were not used before the defaults were fixed."""


def read_texts(task: Task, data: Path) -> dict[str, list[str]]:
    """Return the texts of each set of a task: `train`, `test`, perhaps `aux`, and `ood-` with a name."""
    if task.texts == "demo":
        demo = make_demo_texts(0)
        return {TRAIN: demo.train, TEST: demo.test} | {f"{OOD}{name}": part for name, part in demo.ood.items()}
    field = "en" if task.texts == "europarl" else "text"
    sets = {}
    for name, path in SETS[task.texts].items():
        with gzip.open(data / path, "rt", encoding="utf-8") as file:
            sets[name] = [json.loads(line)[field] for line in file]
    random.Random(0).shuffle(sets[TRAIN])
    if TEST not in sets:
        cut = round((1 - _TEST_SHARE) * len(sets[TRAIN]))
        sets[TRAIN], sets[TEST] = sets[TRAIN][:cut], sets[TRAIN][cut:]
    return {name: part[: _MOST.get(name)] for name, part in sets.items()}
