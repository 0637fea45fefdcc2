"""Commands that write a report about a detector that was compared with others, printed so that they can be copied."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from apood.cli.output import echo
from apood.cli.stores import are_texts

__all__ = ["suggest_report"]

_DETECTOR, _PAGE = "detector", "report.html"
_HELD_OUT, _TEST = "HELD-OUT", "TEST"


def suggest_report(
    about: str,
    options: Sequence[str],
    *,
    train: str | Path,
    held_out: str | Path | None,
    test: str | Path | None,
    ood: Mapping[str, str | Path],
    aux: str | Path | None = None,
    own_class: str | None = None,
    model: str | None = None,
    field: str | None = None,
    cache: Path | None = None,
) -> None:
    """Print the commands that fit a detector, set its threshold and write a report about it.

    Args:
        about: which detector it is.
        options: the options of `apood fit` that make it.
        train: the sequences to fit on: a token store, or texts.
        held_out: the sequences that set the threshold, if there are any.
        test: the ID sequences to report about, if there are any.
        ood: the OOD sets by name.
        aux: the auxiliary outliers that the detector learns from, if it does.
        own_class: the class of the detector if it is not one of apood, as for `apood --import`.
        model: the model that embeds texts to fit on.
        field: the field of texts.
        cache: the folder that keeps embedded texts, if it is not that of the user.
    """
    apood = ["apood"] if own_class is None else ["apood", "--import", own_class]
    sets = [word for name, folder in ood.items() for word in ("--ood", f"{name}={folder}")]

    def name_for_texts(option: str, value: str | Path | None, *given: str | Path | None) -> list[str]:
        needed = value is not None and any(one is not None and are_texts(one) for one in given)
        return [option, str(value)] if needed else []

    def name_reading(*given: str | Path | None) -> list[str]:
        return [*name_for_texts("--field", field, *given), *name_for_texts("--cache", cache, *given)]

    outliers = [] if aux is None else ["--aux", str(aux)]
    embedding = [*name_for_texts("--model", model, train, aux), *name_reading(train, aux)]
    commands = [
        ["apood", "fit", str(train), *options, *outliers, *embedding, "--out", _DETECTOR],
        [*apood, "calibrate", _DETECTOR, str(held_out or _HELD_OUT), *name_reading(held_out)],
        [
            *[*apood, "report", _DETECTOR, "--id", str(test or _TEST), *sets],
            *[*name_reading(test, *ood.values()), "--out", _PAGE],
        ],
    ]
    echo(f"\nTo write a report about {about}, a page to send:\n")
    for command in commands:
        echo(f"  {shlex.join(command)}")
    if missing := [name for name, given in ((_HELD_OUT, held_out), (_TEST, test)) if given is None]:
        verb = "stands" if len(missing) == 1 else "stand"
        echo(
            f"\n{' and '.join(missing)} {verb} for in-distribution sequences that no other command has seen; "
            "`apood store split` divides a store."
        )
