"""What the paper's experiments are about: a model, its ID, AUX and OOD sets, and how they are called in the tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from apood.experiments.paper.settings import Settings

__all__ = ["AUDIO", "LANGUAGE_MODEL", "MULTIPLE_INSTANCE", "SUMMARIZATION", "TRANSLATION", "Mode", "Task"]

Mode = Literal["input", "output"]


@dataclass(frozen=True)
class Task:
    """One of the paper's settings.

    Attributes:
        name: short.
        modes: whose states it looks at.
        items: what its files hold.
        model: on the hub; None where the paper trained its own.
        train_with: the command that trains one.
        dim: D of that model, for estimates.
        parameters: of that model, for estimates.
        sets: by role (`id`, `id_train`, `id_test`, `aux`, or `ood.` and the name in the tables) an input of
            `apood embed`: a preset with a split, or with a place below the folder of what was downloaded by hand.
        unknown: why `sets` are not all there.
        input_logprobs: whether log-probabilities of the input are needed.
        settings: where they differ from those of summarization.
    """

    name: str
    modes: tuple[Mode, ...]
    items: Literal["texts", "sounds", "bags"] = "texts"
    model: str | None = None
    train_with: str = ""
    dim: int = 512
    parameters: int = 0
    sets: Mapping[str, str] = field(default_factory=dict)
    unknown: str = ""
    input_logprobs: bool = False
    settings: Settings = field(default_factory=Settings)

    def column(self, name: str) -> str:
        """What the paper's tables call an OOD set that goes by the name of its preset; else the name itself."""
        for role, given in self.sets.items():
            kind, _, column = role.partition(".")
            if kind == "ood" and name.casefold() in (column.casefold(), given.partition(":")[0].casefold()):
                return column
        return name


SUMMARIZATION = Task(
    "summarization",
    ("input", "output"),
    model="google/pegasus-xsum",
    dim=1024,
    parameters=570_000_000,
    sets={
        "id_train": "xsum:train",
        "id_test": "xsum:test",
        "aux": "c4:train",
        "ood.CNN/DM": "cnn_dailymail:test",
        "ood.Newsroom": "newsroom:newsroom/test.jsonl.gz",
        "ood.Reddit": "reddit_tifu:train",
        "ood.Samsum": "samsum:train",
    },
)

TRANSLATION = Task(
    "translation",
    ("input", "output"),
    train_with="apood train translator",
    parameters=60_000_000,
    sets={
        "id": "wmt15:train",
        "aux": "paracrawl:paracrawl/ParaCrawl.en-fr",
        "ood.IT": "opus-it:opus/Ubuntu.en-fr",
        "ood.Koran": "opus-koran:opus/Tanzil.en-fr",
        "ood.Law": "opus-law:opus/ELRC-EUIPO_law.en-fr",
        "ood.Medical": "opus-medical:opus/EMEA.en-fr",
        "ood.Subtitles": "opus-subtitles:opus/OpenSubtitles.en-fr",
        "ood.ndd2015": "newsdiscussdev2015:wmt15/newsdiscussdev2015-enfr-src.en.sgm",
        "ood.ndt2015": "newsdiscusstest2015:wmt15/newsdiscusstest2015",
        "ood.nt2014": "newstest2014:test",
    },
    settings=Settings(aux=100_000),
)

LANGUAGE_MODEL = Task(
    "language-model",
    ("input",),
    model="EleutherAI/pythia-160m",
    dim=768,
    parameters=162_000_000,
    sets={
        "id_train": "pile:train",
        "id_test": "pile:test",
        "ood.4Chan": "paloma-4chan:test",
        "ood.Reports": "edgar:test",
        "ood.Covid": "long-covid:train",
        "ood.Clinical": "mimic-iii:mimic-iii/NOTEEVENTS.csv.gz",
        "ood.Twitter": "paloma-twitter:test",
    },
    input_logprobs=True,
)

AUDIO = Task(
    "audio",
    ("input",),
    items="sounds",
    train_with="apood train audio-classifier",
    dim=32,
    parameters=100_000,
    unknown="it does not say which seven machines are in-distribution",
)

MULTIPLE_INSTANCE = Task(
    "multiple-instance", ("input",), items="bags", dim=166, unknown="it has no experiment on the bags of MUSK"
)
