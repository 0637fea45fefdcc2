"""The tasks of the paper: a model, its ID, AUX and OOD sets with their names in the tables, and the sizes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from apood.support.checks import check_integer, check_number, suggest_name
from apood.support.errors import InputError

__all__ = [
    "AUDIO", "INVERSE_ROOT", "LANGUAGE_MODEL", "MULTIPLE_INSTANCE", "SHARE", "SUMMARIZATION", "TRANSLATION", "Beta",
    "Mode", "Settings", "Task", "resolve_beta",
]  # fmt: skip

Mode = Literal["input", "output"]
InverseRoot = Literal["1/sqrt(D)"]
Beta = float | InverseRoot

INVERSE_ROOT: InverseRoot = "1/sqrt(D)"
SHARE = 0.8
"""The share of each store that a split draws at random, without replacement."""


def resolve_beta(beta: Beta, dim: int) -> float:
    """Return beta as a number for tokens with `dim` dimensions."""
    return 1 / math.sqrt(dim) if isinstance(beta, str) else float(beta)


@dataclass(frozen=True)
class Settings:
    """The sizes of an experiment, by default those of the paper; with less data, they are upper limits.

    The optimiser, its learning rate, the number of steps and the batch size are part of AP-OOD's `recipe="paper"`.

    Attributes:
        train: ID sequences that a split learns from.
        aux: AUX sequences that a split learns from, or that settings are selected with.
        evaluated: sequences of each set that are scored, as in the reference code.
        max_tokens: input tokens that the model reads.
        max_new_tokens: longest output.
        samples: outputs sampled per text for the entropy, as in the reference code.
        steps: of every trained method; None keeps the default of each method.
        betas: grid of beta.
        queries: grid of T; M is D / T.
        aux_weights: grid of the AUX weight lambda.
        aux_counts: numbers N' of AUX sequences to learn from, besides none and all.
    """

    train: int = 100_000
    aux: int = 10_000
    evaluated: int = 10_000
    max_tokens: int = 512
    max_new_tokens: int = 511
    samples: int = 10
    steps: int | None = None
    betas: tuple[Beta, ...] = (INVERSE_ROOT, 0.25, 0.5, 1.0, 2.0)
    queries: tuple[int, ...] = (1, 4, 16, 64)
    aux_weights: tuple[float, ...] = (0.1, 1.0, 10.0)
    aux_counts: tuple[int, ...] = (8, 64, 512, 1024, 4096)

    def replace_from(self, table: Mapping[str, Any]) -> "Settings":
        """Return the settings with the values of a manifest's table."""
        known = [field.name for field in fields(self)]
        for name, value in table.items():
            if name not in known:
                raise InputError(
                    f"There is no setting {name!r}{suggest_name(name, known)}; allowed are {', '.join(known)}."
                )
            _check_setting(name, value)
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
        return replace(self, **values)


def _check_setting(name: str, value: Any) -> None:
    is_list = isinstance(getattr(Settings, name), tuple)
    if isinstance(value, list) != is_list or value == []:
        raise InputError(f"The setting {name} must be {'a list of numbers' if is_list else 'a number'}, got {value!r}.")
    for one in value if is_list else [value]:
        if name not in ("betas", "aux_weights"):
            check_integer(f"The setting {name}", one, 1)
        elif not (name == "betas" and one == INVERSE_ROOT):
            check_number(f"The setting {name}", one, least=0)


@dataclass(frozen=True)
class Task:
    """A task: the paper's model, its data sets and their names in the tables, and the sizes.

    Attributes:
        name: a short name.
        modes: whether states of the input, of the output or of both are looked at.
        items: what the files hold.
        model: the paper's model on the hub; None if the paper trained its own.
        train_with: the command that trains such a model.
        dim: D of that model, for estimates.
        parameters: the number of its parameters, for estimates.
        beams: the number of beams that it generates with, for estimates.
        sets: an input of `apood embed` per role (`id`, `id_train`, `id_test`, `aux`, or `ood.` and the name in the
            tables): a preset with a split, or with a place below the folder of sets that are downloaded by hand.
        unknown: why `sets` is not complete.
        input_logprobs: whether log-probabilities of the input are needed.
        settings: the paper's sizes.
    """

    name: str
    modes: tuple[Mode, ...]
    items: Literal["texts", "sounds", "bags"] = "texts"
    model: str | None = None
    train_with: str = ""
    dim: int = 512
    parameters: int = 0
    beams: int = 1
    sets: Mapping[str, str] = field(default_factory=dict)
    unknown: str = ""
    input_logprobs: bool = False
    settings: Settings = field(default_factory=Settings)

    def column(self, name: str) -> str:
        """Return the name of an OOD set in the paper's tables, which may be given by its preset; else `name`."""
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
    beams=8,
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
