"""`apood explain`."""

from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apood.cli.arguments import read_text_records
from apood.cli.options import EncoderFolder, TextField
from apood.cli.output import check_file, echo, format_json, print_table
from apood.cli.stores import are_texts
from apood.data.conversations import Chat
from apood.support.checks import format_count
from apood.support.errors import InputError
from apood.support.files import atomic_file

if TYPE_CHECKING:
    from apood.explain.text_explanation import TextExplanation

__all__ = ["explain"]

_MOST = 100  # texts that are explained at once; nobody reads more


class _Format(StrEnum):
    TERMINAL = "terminal"
    JSON = "json"
    HTML = "html"


def explain(
    detector_folder: Annotated[str, typer.Argument(metavar="DETECTOR", help="Folder of a detector of texts.")],
    text_or_file: Annotated[
        str, typer.Argument(metavar="TEXT_OR_FILE", help="A text, or a file of texts as for `apood embed`.")
    ],
    output_format: Annotated[
        _Format, typer.Option("--format", help="Marked text, JSON lines, or an HTML page.")
    ] = _Format.TERMINAL,
    out: Annotated[str, typer.Option(metavar="FILE", help="File to write; - is standard output.")] = "-",
    field: TextField = None,
    training: Annotated[
        str | None,
        typer.Option(
            metavar="TEXTS",
            help="The texts that `apood build` was given, to show those of the nearest neighbours.",
        ),
    ] = None,
    model: EncoderFolder = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Show why texts have their scores: which words and sentences are suspicious, and which member says so.

    TEXT_OR_FILE is a file if one of that name exists, or if it is one word that looks like a file name, a pattern or a
    data set, such as `why.txt`. Otherwise it is the text itself.

    The marks show what tokens contribute to the distance of AP-OOD, and a sentence says how much of the decision this
    explains. A long text is explained by its worst window, which decides. Nearest neighbours are named by their numbers
    among the sequences that the detector learnt from. The detector does not keep their texts; to see them, name the
    file of the training texts with --training.
    """
    from rich.padding import Padding

    from apood.explain.explaining import explain_texts
    from apood.pipeline.facts import load_detector_and_facts
    from apood.pipeline.neighbours import TrainingTexts
    from apood.pipeline.opening import open_text_encoder_of

    file = None if out == "-" else Path(out)
    if file is not None:
        check_file(file, force=force)
    texts = _read_texts(text_or_file, field)
    detector, facts = load_detector_and_facts(detector_folder)
    if training is not None and facts.text_settings is None:
        raise InputError("--training is for detectors of `apood build`, which know how their texts were divided.")
    encoder = open_text_encoder_of(detector, model=model)
    explanations = explain_texts(detector, encoder, texts[:_MOST], describe_length=facts.describe_length)
    if training is not None and facts.text_settings is not None:
        hold_out, seed = facts.text_settings["hold_out"], facts.text_settings["seed"]
        learnt = TrainingTexts(_read_training(training, field, facts.chat), encoder, facts, hold_out, seed)
        explanations = [learnt.add_to(explanation) for explanation in explanations]
    if file is not None:
        with atomic_file(file) as place:
            place.write_text(_format(explanations, output_format), encoding="utf-8")
        echo(f"Explained {format_count(len(explanations), 'text')}; written to {file}.")
    elif output_format is _Format.TERMINAL:
        for number, explanation in enumerate(explanations):
            print_table(Padding(explanation, (bool(number), 0, 0, 0)))
    else:
        echo(_format(explanations, output_format).rstrip("\n"))
    if len(texts) > _MOST:
        echo(f"Only the first {_MOST} texts were explained: choose those that you want to read.", err=True)


def _read_texts(text_or_file: str, field: str | None) -> list[str]:
    """Return the texts of a file, one more than are explained at most, or the text itself."""
    from apood.data.record import keep_good

    if not _names_texts(text_or_file):
        if field is not None:
            raise InputError(f"There is no file {text_or_file!r}, and a text has no fields: leave out --field.")
        return [text_or_file]
    records = read_text_records(
        [text_or_file], field=field, target_field=None, pairs=False, allow_empty=False, skip_bad=False
    )
    return [record.item for record in islice(keep_good(records, None), _MOST + 1)]


def _read_training(name: str, field: str | None, chat: Chat | None) -> list[str]:
    """Return the texts that `apood build` read: those of conversations, and without bad records if it skipped them."""
    from apood.data.record import Skipped, keep_good

    records = read_text_records(
        [name], field=field, target_field=None, pairs=False, allow_empty=False, skip_bad=True, chat=chat
    )
    return [record.item for record in keep_good(records, Skipped())]  # those that it refused would not fit the detector


def _names_texts(given: str) -> bool:
    """Return whether an argument names texts, so that a file name with a typing error is not explained as a text."""
    try:
        return are_texts(given) if len(given.split()) == 1 else Path(given).is_file()
    except (OSError, ValueError):  # a text may be longer than any name, or contain a null character
        return False


def _format(explanations: "list[TextExplanation]", output_format: _Format) -> str:
    """Return the content of a file."""
    if output_format is _Format.HTML:
        from apood.explain.html import render_page

        return render_page(explanations)
    if output_format is _Format.JSON:
        return "".join(format_json(explanation.to_json()) + "\n" for explanation in explanations)
    return "\n\n".join(map(str, explanations)) + "\n"
