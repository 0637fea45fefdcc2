"""The options of commands that run on a cluster, and what these commands do there."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from apood.cli.output import advise_on_interrupt, echo, print_facts, print_json
from apood.support.checks import format_count
from apood.support.errors import InputError
from apood.support.files import reserve_path, sha256_of

if TYPE_CHECKING:
    from apood.scale.job import Job
    from apood.scale.shards import Counts
    from apood.scale.worker import Worker

__all__ = ["Address", "DryRunRay", "Engine", "Workers", "refuse_ray_options", "run_job", "score_on_ray"]

Engine = Annotated[
    Literal["plain", "ray"],
    typer.Option("--engine", help="Where the work is done: in this process, or by workers of a Ray cluster."),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Head node of the Ray cluster, or auto for the one on this machine.",
        show_default="RAY_ADDRESS, or a new one on this machine",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of workers on the cluster.", show_default="one per GPU or processor"),
]
DryRunRay = Annotated[
    bool, typer.Option("--dry-run", help="With --engine ray, only estimate documents, tokens and time.")
]


def refuse_ray_options(engine: str, **given: Any) -> None:
    """Raise InputError if an option for a cluster is given, and the engine is another one."""
    for name, value in given.items():
        if engine != "ray" and value not in (None, False):
            raise InputError(f"--{name.replace('_', '-')} is for --engine ray: add it, or leave the option out.")


def run_job(job: "Job", worker: "type[Worker]", *, address: str | None, workers: int | None) -> "tuple[Counts, int]":
    """Do what is left of a job, and return the counts of all rows, and how many parts were done by earlier runs."""
    from apood.scale.engine import connect, run_workers

    left = job.begin()
    if left:
        with connect(address) as cluster:
            count = cluster.count_workers(workers)
            for _ in run_workers(worker, job.settings, job.parts, left, cluster=cluster, workers=count):
                pass
    return job.finish(), len(job.parts) - len(left)


def score_on_ray(
    detector: Path,
    inputs: Sequence[str],
    out: str,
    *,
    fields: Mapping[str, Any],
    model: str | None,
    address: str | None,
    workers: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run `apood score --engine ray`."""
    from apood.cli.arguments import are_sounds
    from apood.data.inputs import Request
    from apood.pipeline.facts import load_detector_and_facts
    from apood.scale.job import Job, Settings
    from apood.scale.scoring import ScoreWorker

    if out == "-":
        raise InputError("--engine ray writes a folder of Parquet files: name it with --out.")
    if are_sounds(inputs):
        raise InputError("--engine ray takes texts; score sounds without it.")
    loaded, _ = load_detector_and_facts(detector)  # an error before there is a folder
    pairs = (loaded.encoder_ or {}).get("mode") == "reference"
    settings = Settings(
        folder=str(Path(out).resolve()),
        request=Request(pairs=pairs or fields["target_field"] is not None, allow_empty=True, **fields),
        detector=str(detector.resolve()),
        model=model,
    )
    identity = {"detector": [sha256_of(detector / name) for name in ("config.json", "model.safetensors")]}
    job = Job.plan("score", inputs, settings, identity)
    if dry_run:
        _print_estimate(job, ScoreWorker, workers, as_json)
        return
    advice = f"what is done is in {out}; run the same command again to continue."
    with advise_on_interrupt(lambda: advice), reserve_path(Path(out)):
        counts, before = run_job(job, ScoreWorker, address=address, workers=workers)
    if as_json:
        print_json({**asdict(counts), "parts_done_before": before, "folder": out})
        return
    _report_bad(counts)
    ood = f", {counts.ood:,} of them OOD" if hasattr(loaded, "threshold_") else ""
    echo(f"Scored {format_count(counts.rows - counts.bad, 'input')}{ood}; the rows are in {out}.")


def _report_bad(counts: "Counts") -> None:
    if counts.bad:
        are = "is a row" if counts.bad == 1 else "are rows"
        echo(f"{format_count(counts.bad, 'document')} could not be used, and {are} with the error.", err=True)


def _print_estimate(job: "Job", worker: "type[Worker]", workers: int | None, as_json: bool) -> None:
    from apood.scale.estimating import estimate_job

    facts = asdict(estimate_job(job, worker, workers))
    print_json(facts) if as_json else print_facts(facts)
