"""`apood embed`."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.arguments import (
    are_sounds,
    check_input_kind,
    count_lines,
    read_sound_records,
    read_text_records,
    report_skipped,
)
from apood.cli.engine import (
    Address,
    DryRunRay,
    Engine,
    OnRay,
    Workers,
    embed_on_ray,
    refuse_other_options,
)
from apood.cli.options import MODELS, SkipBad, TextField
from apood.cli.output import advise_on_interrupt, echo, print_json
from apood.support.checks import format_count
from apood.support.cloud import parse_place
from apood.support.cloud_folders import find_work_folder
from apood.support.errors import InputError, StoreError

if TYPE_CHECKING:
    from apood.data.record import BadRecord, Record
    from apood.encoders.audio.encoder import AudioEncoder
    from apood.encoders.embed import EmbedCounts
    from apood.encoders.opening import AnyTextEncoder

__all__ = ["EXAMPLES", "embed"]


class TokenDtype(StrEnum):
    """The dtypes of stored tokens."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"


class Mode(StrEnum):
    """The text whose states are taken."""

    input = "input"
    output = "output"
    reference = "reference"


class OnLong(StrEnum):
    """What to do with a text of more than --max-tokens tokens."""

    windows = "windows"
    refuse = "refuse"
    beginning = "beginning"


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
"""Shown by `apood embed --help`, one per line."""


def embed(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Texts: .jsonl, .ndjson, .json, .csv, .tsv, .txt, .sgm (each also .gz) or .parquet files, a pattern "
            "like 'data/*.jsonl', files:FOLDER, moses:PREFIX:en-fr, an address like s3://bucket/data.jsonl, "
            "hf:OWNER/NAME:SPLIT, a name that `apood datasets` lists, or - for standard input. "
            "Sounds: .wav or .flac files, a folder of them, or .npz files.",
        ),
    ],
    model: Annotated[str, typer.Option("--model", metavar="MODEL", help=f"Model that embeds the inputs: {MODELS}.")],
    out: Annotated[str, typer.Option(metavar="STORE", help="Folder of the token store to write.")],
    field: TextField = None,
    mode: Annotated[
        Mode,
        typer.Option(
            "--mode",
            metavar="MODE",
            help="input: states of the text. output: states of the model's output for the text. "
            "reference: states of a given target.",
        ),
    ] = Mode.input,
    target_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Field or column of the target, for --mode reference."),
    ] = None,
    layers: Annotated[
        str,
        typer.Option(
            "--layers",
            metavar="LAYERS",
            help="Hidden layers that tokens are made of. -1: the last one, or the number of another (0: the "
            "embeddings). mix: the mean over all layers but the embeddings. mix:4,5,6: the mean over these. auto: -1 "
            "for the inputs of an encoder-decoder model of texts, else mix.",
        ),
    ] = "auto",
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Largest number of tokens of a sequence, or the model's limit if it is smaller; 512 by default.",
        ),
    ] = None,
    on_long: Annotated[
        OnLong | None,
        typer.Option(
            "--on-long",
            metavar="HOW",
            help="What to do with a text of more tokens. windows: it becomes several sequences, which overlap, and a "
            "detector judges it by the worst. refuse: it is a record that cannot be used. beginning: the rest is cut "
            "off, and no detector sees it.",
            show_default="windows, but beginning for --mode output and --mode reference",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Cut outputs and targets at N tokens; 128 by default."),
    ] = None,
    beams: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of beams for --mode output; 1, the default, is greedy search."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Number of outputs to sample per text, 0 by default; the method entropy needs them.",
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="An instruction for the model, with {text} in the place of the text."),
    ] = None,
    special_tokens: Annotated[
        bool | None,
        typer.Option(
            "--special-tokens/--no-special-tokens",
            help="Whether to store the special tokens that the tokenizer or the model adds.",
            show_default="yes for texts, no for sounds",
        ),
    ] = None,
    logprobs: Annotated[
        bool | None,
        typer.Option(
            "--logprobs/--no-logprobs",
            help="Whether to store the log-probability of every token; the method perplexity needs it.",
            show_default="yes, if the model has them",
        ),
    ] = None,
    dtype: Annotated[
        TokenDtype,
        typer.Option("--dtype", metavar="DTYPE", help="Dtype of the stored tokens: float16, bfloat16 or float32."),
    ] = TokenDtype.float16,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Take at most N records.", show_default="all")
    ] = None,
    shuffle: Annotated[
        bool,
        typer.Option("--shuffle", help="Take the records in random order. All of them are read into memory first."),
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Seed of --shuffle and --samples; 0 by default.")
    ] = None,
    skip_bad: SkipBad = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a store after an interruption.")] = False,
    engine: Engine = "plain",
    address: Address = None,
    workers: Workers = None,
    dry_run: DryRunRay = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as a JSON object.")] = False,
) -> None:
    """Turn texts or sounds into the token embeddings of a frozen transformer, and write them to a token store.

    The store has one sequence per record, or one per window of a long text, in the order given, and keeps the texts
    beside their tokens. If a run ends early, the same command with --resume continues where it stopped.

    With --engine ray, workers of a cluster embed the texts. What they have done is kept in STORE.parts until all is
    there, and the same command continues from it. Records that cannot be used are skipped.
    """
    on_cluster = {"address": address, "workers": workers, "dry_run": dry_run}
    refuse_other_options(engine, plain={"limit": limit, "shuffle": shuffle}, ray=on_cluster)
    _check_unused_options(mode, target_field, max_new_tokens, beams, samples, shuffle, seed)
    sounds = are_sounds(inputs)
    what = "sound" if sounds else "text"
    if sounds and field is not None:
        raise InputError("--field is for texts, but the inputs are sounds.")
    options = {
        "mode": mode.value,
        "layers": layers,
        "max_tokens": max_tokens,
        "on_long": None if on_long is None else on_long.value,
        "max_new_tokens": max_new_tokens,
        "beams": beams,
        "samples": samples,
        "seed": seed if samples else None,
        "template": template,
        "special_tokens": special_tokens,
        "logprobs": logprobs,
    }
    if engine == "ray":
        given = {name: value for name, value in options.items() if value is not None}
        fields = {"field": field, "target_field": target_field, "pairs": mode is Mode.reference}
        on_ray = OnRay(address, workers, dry_run, as_json)
        embed_on_ray(inputs, out, {"model": model, **given}, fields, dtype.value, on_ray)
        return
    from apood.tokens.documents import count_documents
    from apood.tokens.store import INDEX_FILE, TokenStore

    folder = find_work_folder(parse_place(out))
    index = folder / INDEX_FILE
    if index.exists():
        if not resume:
            raise StoreError(
                f"There is already a token store in {folder}: add --resume to continue it, or delete it first."
            )
        if limit is not None and limit < (held := count_documents(TokenStore(folder))):
            raise InputError(
                f"The token store {out} already holds {format_count(held, what)}, more than --limit {limit}: to resume "
                f"it, leave out --limit or set it to at least {held:,}."
            )

    def describe_kept() -> str:
        if not index.exists():
            return "nothing was written; run the same command again."
        count = count_documents(TokenStore(folder))
        how = "run the same command again" if resume else "add --resume to the same command"
        return f"{format_count(count, what)} {'is' if count == 1 else 'are'} in {folder}; {how} to continue."

    with advise_on_interrupt(describe_kept), _advise_on_bad_record(index, describe_kept):
        records: Iterable[Record | BadRecord] = ()
        if not sounds:
            pairs = mode is Mode.reference
            records = read_text_records(
                inputs, field=field, target_field=target_field, pairs=pairs, allow_empty=False, skip_bad=skip_bad
            )
        encoder = _open_encoder(inputs, model, {name: value for name, value in options.items() if value is not None})
        if sounds:
            records = read_sound_records(inputs, encoder, skip_bad=skip_bad)
        records, total = _choose_records(records, count_lines(inputs), limit, (seed or 0) if shuffle else None)
        counts = _embed_to_store(records, encoder, out, resume=resume, dtype=dtype, skip_bad=skip_bad, total=total)
    report_skipped(counts.bad, counts.first_bad)
    if as_json:
        print_json(asdict(counts) | {"store": out})
    else:
        echo(f"Embedded {format_count(counts.records, what)} into {out}: {_describe_counts(counts, encoder)}.")


def _check_unused_options(
    mode: Mode,
    target_field: str | None,
    max_new_tokens: int | None,
    beams: int | None,
    samples: int | None,
    shuffle: bool,
    seed: int | None,
) -> None:
    """Raise InputError if an option would have no effect."""
    if target_field is not None and mode is not Mode.reference:
        raise InputError(f"--target-field is for --mode reference, but the mode is {mode.value}.")
    if beams is not None and mode is not Mode.output:
        raise InputError(f"--beams is for --mode output, but the mode is {mode.value}.")
    if max_new_tokens is not None and mode is Mode.input and not samples:
        raise InputError("--max-new-tokens is for --mode output, --mode reference or --samples: add one of them.")
    if seed is not None and not (shuffle or samples):
        raise InputError("--seed is for --shuffle or --samples: add one of them.")


def _open_encoder(inputs: list[str], model: str, options: dict[str, Any]) -> Any:
    from apood.encoders.base.pretrained import find_pretrained, is_audio_model
    from apood.encoders.opening import open_encoder
    from apood.encoders.remote.client import is_address

    if is_address(model):
        check_input_kind(inputs, model, takes_sounds=False)
        return open_encoder(model, **options)
    pretrained = find_pretrained(model)
    check_input_kind(inputs, model, takes_sounds=is_audio_model(pretrained.folder))
    return open_encoder(pretrained, **options)


def _choose_records(
    records: "Iterable[Record | BadRecord]", total: int | None, limit: int | None, seed: int | None
) -> "tuple[Iterable[Record | BadRecord], int | None]":
    """Return the records to take, and their largest number, if it is known."""
    from apood.data.inputs import shuffle_records
    from apood.encoders.embed import limit_records

    if seed is not None:
        order = list(shuffle_records(records, seed))
        records, total = order, len(order)
    if limit is None:
        return records, total
    return limit_records(records, limit), limit if total is None else min(limit, total)


def _embed_to_store(
    records: "Iterable[Record | BadRecord]",
    encoder: "AnyTextEncoder | AudioEncoder",
    out: str,
    *,
    dtype: TokenDtype,
    **options: Any,
) -> "EmbedCounts":
    import torch

    from apood.encoders.embed import embed_to_store

    return embed_to_store(records, encoder, out, dtype=getattr(torch, dtype.value), **options)


@contextlib.contextmanager
def _advise_on_bad_record(index: Path, describe_kept: Callable[[], str]) -> Iterator[None]:
    """Add to the error of a bad record how to skip it and, if there is a store, what it holds."""
    from apood.data.record import BadRecordError

    try:
        yield
    except BadRecordError as error:
        advice = [str(error).rstrip("."), "add --skip-bad to skip such records"]
        if index.exists():
            advice.append(describe_kept().rstrip("."))
        raise InputError("; ".join(advice) + ".") from error


def _describe_counts(counts: "EmbedCounts", encoder: "AnyTextEncoder | AudioEncoder") -> str:
    facts = [f"{format_count(counts.tokens, 'token')} of D={encoder.dim}"]
    if counts.long:
        windows = counts.sequences - counts.records + counts.long
        facts.append(f"{counts.long:,} longer than {format_count(encoder.max_tokens, 'token')}, in {windows:,} windows")
    if counts.truncated:
        facts.append(f"{counts.truncated:,} cut at {format_count(encoder.max_tokens, 'token')}")
    if counts.outputs_cut:
        facts.append(f"{format_count(counts.outputs_cut, 'output')} of --max-new-tokens tokens, probably cut there")
    if counts.empty:
        facts.append(f"{counts.empty:,} without tokens, which fitting refuses")
    if counts.skipped:
        facts.append(f"{counts.skipped:,} {'was' if counts.skipped == 1 else 'were'} there before")
    if counts.bad:
        facts.append(f"{format_count(counts.bad, 'bad one')} skipped")
    return ", ".join(facts)
