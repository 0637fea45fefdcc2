"""The options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "MODELS", "Accept", "AsJson", "AsJsonLines", "CacheFolder", "EncoderFolder", "EveryCache", "Fast", "Force",
    "HeldOutInputs", "Method", "Methods", "NoVerify", "OodSets", "Resume", "Settings", "SkipBad", "SkipBadRows",
    "TextField", "TextModel",
]  # fmt: skip

MODELS = "a folder, a hub id (owner/name@revision), minilm, or the address of a model server"
"""What the option --model of commands that embed texts can name."""

# how results are printed and written

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print JSON lines even on a terminal.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing detector.")]

# texts and token stores

TextModel = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help=f"Model that embeds texts: {MODELS}. Not for token stores."),
]
EncoderFolder = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="FOLDER",
        help="Folder of the encoder, if it has moved, or the address of its server.",
        show_default="where it was found",
    ),
]
TextField = Annotated[
    str | None, typer.Option("--field", metavar="NAME", help="Field or column of the text, called text by default.")
]
CacheFolder = Annotated[
    Path | None,
    typer.Option("--cache", metavar="FOLDER", help="Folder that keeps embedded texts.", show_default="~/.cache/apood"),
]
EveryCache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="FOLDER",
        help="Folder that keeps fits and scores, and embedded texts.",
        show_default="cache in --out, and ~/.cache/apood for texts",
    ),
]
NoVerify = Annotated[
    bool, typer.Option("--no-verify", help="Do not compute the hashes of token stores, so damage is not noticed.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip records that cannot be used.")]
SkipBadRows = Annotated[bool, typer.Option("--skip-bad", help="Skip rows that cannot be used.")]
HeldOutInputs = Annotated[
    str,
    typer.Option(
        "--id",
        metavar="STORE_OR_TEXTS",
        help="In-distribution inputs that neither the fit nor the calibration has seen.",
    ),
]
OodSets = Annotated[
    list[str] | None,
    typer.Option("--ood", metavar="NAME=STORE_OR_TEXTS", help="Name and sequences of an OOD set; may be repeated."),
]

# fits

Method = Annotated[
    str,
    typer.Option(
        "--method",
        metavar="NAME",
        help="A method that `apood methods` lists, or module:Class of your own.",
        show_default="default",
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="A method that `apood methods` lists, or module:Class of your own; may be repeated.",
        show_default="all",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set a parameter of the method, as in `--set k=5`; may be repeated."
    ),
]
Fast = Annotated[
    bool, typer.Option("--fast", help="Train nothing, for a first look: the default method without AP-OOD.")
]
Accept = Annotated[
    float, typer.Option("--accept", metavar="SHARE", help="Share of new in-distribution inputs to accept.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted training.")]
