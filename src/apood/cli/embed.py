"""`apood embed`."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.arguments import are_sounds, check_input_kind, read_sound_records, read_text_records, report_skipped
from apood.cli.output import advise_on_interrupt, print_json
from apood.support.checks import format_count
from apood.support.errors import InputError, StoreError

if TYPE_CHECKING:
    from apood.data.record import BadRecord, Record
    from apood.encoders.audio.encoder import AudioEncoder
    from apood.encoders.embed import EmbedCounts
    from apood.encoders.text.encoder import TextEncoder

__all__ = ["EXAMPLES", "embed"]


_ONE_A_LINE = (".jsonl", ".ndjson", ".json", ".txt")


class TokenDtype(StrEnum):
    """What a store may keep tokens in."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"


class Mode(StrEnum):
    """Whose states are taken."""

    input = "input"
    output = "output"
    reference = "reference"


EXAMPLES = "\n\n".join(
    (
        "apood embed train.jsonl --model sentence-transformers/all-MiniLM-L6-v2 --out train",
        "apood embed hf:EdinburghNLP/xsum:train --field document --model google/pegasus-xsum --out xsum --limit 10000",
        "apood embed xsum:train --model google/pegasus-xsum --mode output --samples 8 --out summaries",
        "apood embed pairs.jsonl --field de --target-field en --mode reference --model ./translator --out pairs",
        "apood embed recordings/ --model ./audio-classifier --out sounds --skip-bad",
        "zcat texts.jsonl.gz | apood embed - --model ./model --out texts",
    )
)
"""Shown by `apood embed --help`, a line each."""


def embed(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Texts: .jsonl, .csv, .tsv, .txt (each also .gz) or .parquet, a pattern like 'data/*.jsonl', "
            "hf:OWNER/NAME:SPLIT, a name that `apood datasets` lists, or - for standard input. "
            "Sounds: .wav, .flac, a folder of them, or .npz.",
        ),
    ],
    model: Annotated[
        str, typer.Option(metavar="ID_OR_FOLDER", help="A model folder, or a hub id (owner/name@revision).")
    ],
    out: Annotated[Path, typer.Option(metavar="STORE", help="Folder of the token store to write.")],
    field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Field or column that holds the text.", show_default="text"),
    ] = None,
    mode: Annotated[
        Mode,
        typer.Option(
            "--mode",
            metavar="MODE",
            help="Whose states: input, of the text; output, of what the model generates for it; "
            "reference, of a target that is given.",
        ),
    ] = Mode.input,
    target_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Field or column that holds the target, in mode reference."),
    ] = None,
    layer: Annotated[
        int, typer.Option(metavar="N", help="Hidden layer to take the tokens from; -1 is the last, 0 the embeddings.")
    ] = -1,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Longer texts are cut here, or at the model's own limit.", show_default="512"
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Where an output ends, or a target is cut.", show_default="128"),
    ] = None,
    beams: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Beams of the search for an output.", show_default="1")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Outputs to draw a text, for the method entropy.", show_default="0"),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What the model reads, with {text} where the text goes: an instruction."),
    ] = None,
    special_tokens: Annotated[
        bool | None,
        typer.Option(
            "--special-tokens/--no-special-tokens",
            help="Whether tokens that the tokenizer or the model adds count.",
            show_default="with texts yes, with sounds no",
        ),
    ] = None,
    logprobs: Annotated[
        bool | None,
        typer.Option(
            "--logprobs/--no-logprobs",
            help="Whether to store the log-probability of every token, for the method perplexity.",
            show_default="yes, where the model can",
        ),
    ] = None,
    dtype: Annotated[
        TokenDtype,
        typer.Option("--dtype", metavar="DTYPE", help="What tokens are stored in: float16, bfloat16 or float32."),
    ] = TokenDtype.float16,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Take only so many records.", show_default="all")
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Take them in random order; all are read first, into memory.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Of that order, and of samples.", show_default="0")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out records that cannot be used, and count them.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a store whose making was interrupted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as an object.")] = False,
) -> None:
    """Turns texts or sounds into the token embeddings of a frozen transformer, and writes them to a token store.

    One sequence a record, in the order given; texts are kept beside their tokens. Whatever ends a run early, the same
    command with --resume goes on where it stopped.
    """
    _refuse_idle_options(mode, target_field, max_new_tokens, beams, samples, shuffle, seed)
    sounds = are_sounds(inputs)
    what = "sound" if sounds else "text"
    if sounds and field is not None:
        raise InputError("--field is for texts, and the inputs are sounds.")
    from apood.tokens.store import INDEX_FILE, StoreIndex

    if (out / INDEX_FILE).exists():
        if not resume:
            raise StoreError(
                f"There is already a token store in {out}: add --resume to go on with it, or delete it first."
            )
        if limit is not None and limit < (held := StoreIndex.read(out).sequences):
            raise InputError(
                f"The token store {out} holds {format_count(held, what)} already, more than --limit "
                f"{limit}: to resume it, "
                f"the limit must be at least {held:,}, or left out."
            )

    def kept() -> str:
        if not (out / INDEX_FILE).exists():
            return "nothing was written; run the same command again to start anew."
        count = StoreIndex.read(out).sequences
        is_in, them = ("is in", "it") if count == 1 else ("are in", "them")
        how = "the same command goes on" if resume else "add --resume to the same command to go on"
        return f"{format_count(count, what)} {is_in} {out}; {how} behind {them}."

    options = {
        "mode": mode.value,
        "layer": layer,
        "max_tokens": max_tokens,
        "max_new_tokens": max_new_tokens,
        "beams": beams,
        "samples": samples,
        "seed": seed if samples else None,
        "template": template,
        "special_tokens": special_tokens,
        "logprobs": logprobs,
    }
    with advise_on_interrupt(kept), _bad_records_with(lambda: kept() if (out / INDEX_FILE).exists() else None):
        records: Iterable[Record | BadRecord] = ()
        if not sounds:
            pairs = mode is Mode.reference
            records = read_text_records(
                inputs, field=field, target_field=target_field, pairs=pairs, allow_empty=False, skip_bad=skip_bad
            )
        encoder = _opened(inputs, model, {name: value for name, value in options.items() if value is not None})
        if sounds:
            records = read_sound_records(inputs, encoder, skip_bad=skip_bad)
        records, total = _chosen(records, _lines_in(inputs), limit, (seed or 0) if shuffle else None)
        counts = _embedded(records, encoder, out, resume=resume, dtype=dtype, skip_bad=skip_bad, total=total)
    report_skipped(counts.bad, counts.first_bad)
    if as_json:
        print_json(asdict(counts) | {"store": str(out)})
    else:
        typer.echo(f"Embedded {format_count(counts.sequences, what)} into {out}: {_told(counts, encoder)}.")


def _refuse_idle_options(
    mode: Mode,
    target_field: str | None,
    max_new_tokens: int | None,
    beams: int | None,
    samples: int | None,
    shuffle: bool,
    seed: int | None,
) -> None:
    """Refuses what would change nothing: whoever gave it expected something else."""
    if target_field is not None and mode is not Mode.reference:
        raise InputError(f"--target-field is for --mode reference, and the mode is {mode.value}.")
    if beams is not None and mode is not Mode.output:
        raise InputError(f"--beams is for --mode output, and the mode is {mode.value}.")
    if max_new_tokens is not None and mode is Mode.input and not samples:
        raise InputError("--max-new-tokens is for --mode output, --mode reference and --samples, and none is given.")
    if seed is not None and not (shuffle or samples):
        raise InputError("--seed is for --shuffle and --samples, and none is given.")


def _opened(inputs: list[str], model: str, options: dict[str, Any]) -> Any:
    from apood.encoders.base.pretrained import find_pretrained, is_audio_model
    from apood.encoders.factory import open_encoder

    pretrained = find_pretrained(model)
    check_input_kind(inputs, model, takes_sounds=is_audio_model(pretrained.folder))
    return open_encoder(pretrained, **options)


def _lines_in(inputs: list[str]) -> int | None:
    """About how many records there are, for the time left, where that is one a line and somebody watches."""
    paths = [Path(name) for name in inputs]
    if not sys.stderr.isatty() or not all(path.is_file() and path.suffix in _ONE_A_LINE for path in paths):
        return None
    lines = 0
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                lines += block.count(b"\n")
    return lines


def _chosen(
    records: "Iterable[Record | BadRecord]", total: int | None, limit: int | None, seed: int | None
) -> "tuple[Iterable[Record | BadRecord], int | None]":
    """The records to take, and how many that are at most, where it is known."""
    from apood.data.inputs import shuffle_records
    from apood.encoders.embed import limit_records

    if seed is not None:
        order = list(shuffle_records(records, seed))
        records, total = order, len(order)
    if limit is None:
        return records, total
    return limit_records(records, limit), limit if total is None else min(limit, total)


def _embedded(
    records: "Iterable[Record | BadRecord]",
    encoder: "TextEncoder | AudioEncoder",
    out: Path,
    *,
    dtype: TokenDtype,
    **options: Any,
) -> "EmbedCounts":
    import torch

    from apood.encoders.embed import embed_to_store

    return embed_to_store(records, encoder, out, dtype=getattr(torch, dtype.value), **options)


@contextlib.contextmanager
def _bad_records_with(kept: Callable[[], str | None]) -> Iterator[None]:
    """Says of a bad record how to do without it, and what was kept of those before."""
    from apood.data.record import BadRecordError

    try:
        yield
    except BadRecordError as error:
        advice = ["--skip-bad leaves such records out", kept()]
        raise InputError("; ".join([str(error).rstrip("."), *filter(None, advice)]).rstrip(".") + ".") from error


def _told(counts: "EmbedCounts", encoder: "TextEncoder | AudioEncoder") -> str:
    facts = [f"{format_count(counts.tokens, 'token')} of D={encoder.dim}"]
    if counts.truncated:
        facts.append(f"{counts.truncated:,} cut at {format_count(encoder.max_tokens, 'token')}")
    if counts.outputs_cut:
        facts.append(
            f"{format_count(counts.outputs_cut, 'output')} as long as --max-new-tokens allows, so probably cut"
        )
    if counts.empty:
        facts.append(f"{counts.empty:,} without any token, which fitting refuses")
    if counts.skipped:
        facts.append(f"{counts.skipped:,} {'was' if counts.skipped == 1 else 'were'} there before")
    if counts.bad:
        facts.append(f"{format_count(counts.bad, 'bad one')} skipped")
    return ", ".join(facts)
