"""The options of commands that run on a cluster, and what these commands do there."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from apood.cli.arguments import are_sounds, reads_pairs, refuse_occupied, report_skipped, report_windows
from apood.cli.output import advise_on_interrupt, echo, print_facts, print_json
from apood.support.checks import format_count
from apood.support.cloud import Place, list_names, parse_place
from apood.support.cloud_folders import find_work_folder
from apood.support.errors import InputError
from apood.support.files import reserve_path

if TYPE_CHECKING:
    from apood.detectors.contract.base import Detector
    from apood.scale.job import Job
    from apood.scale.shards import Counts
    from apood.scale.worker import Worker

__all__ = [
    "Address",
    "DryRunRay",
    "Engine",
    "OnRay",
    "Workers",
    "embed_on_ray",
    "fit_on_ray",
    "refuse_other_options",
    "score_on_ray",
]

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


def refuse_other_options(engine: str, *, plain: Mapping[str, Any], ray: Mapping[str, Any]) -> None:
    """Raise InputError if an option is given that is for the other engine: those of `plain` are not for ray.

    On a cluster, all texts are taken, and output is never replaced. Bad texts are skipped, and the same command
    continues a job, with or without the options that say so.
    """
    needed, others = ("plain", plain) if engine == "ray" else ("ray", ray)
    for name, value in others.items():
        if value is not None and value is not False:  # 0 is given, too
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} is for --engine {needed}: choose that engine, or leave out {option}.")


@dataclass(frozen=True)
class OnRay:
    """How a command runs on a cluster, from its options."""

    address: str | None
    workers: int | None
    dry_run: bool
    as_json: bool

    def run(self, job: "Job", worker: "type[Worker]") -> "Counts":
        """Do what is left of a job, and return the counts of all rows. Workers that do not encode need no GPU.

        The job begins when there is a cluster with enough places: a wrong address leaves nothing behind.
        """
        from apood.scale.engine import connect, find_resources, run_workers

        left = job.begin() if job.has_begun() else None
        if left != []:
            with connect(self.address):
                cluster = find_resources()
                cluster.count_workers(self.workers)  # refuses what a later pass of the command could not have
                if not worker.encodes:
                    cluster = cluster.without_gpus()
                count = cluster.count_workers(self.workers)
                left = job.begin() if left is None else left
                for notice in cluster.list_notices(min(count, len(left))):
                    echo(notice, err=True)
                for _ in run_workers(worker, job.settings, job.parts, left, cluster=cluster, workers=count):
                    pass
        return job.finish()

    def show_estimate(self, job: "Job", worker: "type[Worker] | None", *, commits: bool = True) -> None:
        """Print what a job will take.

        No worker encodes if `worker` is None. Without `commits`, a run does not write what this kind of worker writes.
        """
        from apood.scale.estimating import estimate_job

        facts = asdict(estimate_job(job, worker, self._count_workers()))
        facts |= {} if commits else {"written": None}
        if self.as_json:
            print_json(facts)
            return
        if facts["seconds"] is not None:
            facts["seconds"] = "under 1" if facts["seconds"] < 1 else round(facts["seconds"])
        print_facts(facts)

    def _count_workers(self) -> int | None:
        """Return the number of workers that a run would have; None for all of this machine, if it would start Ray."""
        from apood.scale.engine import connect, find_resources, has_cluster

        if not has_cluster(self.address):
            return self.workers
        with connect(self.address):
            return find_resources().count_workers(self.workers)


def score_on_ray(
    detector: str, inputs: Sequence[str], out: str, fields: Mapping[str, Any], model: str | None, on_ray: OnRay
) -> None:
    """Score texts on a cluster; `fields` are the fields to read and to keep."""
    from apood.data.inputs import Request
    from apood.encoders.base.pretrained import find_pretrained
    from apood.encoders.remote.client import is_address
    from apood.pipeline.facts import load_detector_and_facts
    from apood.pipeline.judging import warn_of_unscored
    from apood.scale.job import Job, Settings
    from apood.scale.scoring import ScoreWorker, digest_detector

    if out == "-":
        raise InputError("--engine ray writes a folder of Parquet files: name it with --out.")
    _refuse_sounds(inputs)
    folder, place = parse_place(out), parse_place(detector)
    loaded, _ = load_detector_and_facts(detector)  # an error before there is a folder
    if model is not None and not is_address(model):
        find_pretrained(model)  # likewise
    pairs = reads_pairs(loaded, fields["target_field"])
    settings = Settings(
        folder=_name_for_workers(folder),
        request=Request(pairs=pairs, allow_empty=True, **fields),
        detector=_name_for_workers(place),
        model=model,
    )
    job = Job.plan("score", inputs, settings, {"detector": digest_detector(place)})
    if on_ray.dry_run:
        on_ray.show_estimate(job, ScoreWorker)
        return
    with advise_on_interrupt(_advise(folder)), _reserve(folder):
        counts = on_ray.run(job, ScoreWorker)
    warn_of_unscored(counts.rows - counts.bad, counts.empty, counts.too_long, loaded.requires)
    report_windows(counts.long, counts.cut, int((loaded.encoder_ or {}).get("max_tokens") or 0))
    if on_ray.as_json:
        print_json({**asdict(counts), "folder": out})
        return
    if counts.bad:
        are = "is a row" if counts.bad == 1 else "are rows"
        echo(f"{format_count(counts.bad, 'document')} could not be used, and {are} with the error.", err=True)
    ood = f", {counts.ood:,} of them OOD" if hasattr(loaded, "threshold_") else ""
    echo(f"Scored {format_count(counts.rows - counts.bad, 'input')}{ood}; the rows are in {out}.")


def embed_on_ray(
    inputs: Sequence[str],
    out: str,
    encoder: Mapping[str, Any],
    fields: Mapping[str, Any],
    dtype: str,
    on_ray: OnRay,
) -> None:
    """Embed texts on a cluster; `encoder` are the model and the options of the encoder."""
    from apood.data.inputs import Request
    from apood.encoders.opening import open_encoder
    from apood.pipeline.token_cache import describe_source
    from apood.scale.embedding import EmbedWorker, join_units
    from apood.scale.job import Job, Settings

    _refuse_sounds(inputs)
    folder, work = parse_place(out), _find_work(out, "parts")
    if not on_ray.dry_run:
        _refuse_left(folder, work)
        refuse_occupied(folder)
    settings = Settings(_name_for_workers(work), Request(**fields), encoder=encoder, dtype=dtype)
    source = describe_source(encoder["model"], lambda: open_encoder(**encoder))
    identity = {"encoder": {**encoder, "model": source}, "dtype": dtype}
    job = Job.plan("embed", inputs, settings, identity)
    if on_ray.dry_run:
        on_ray.show_estimate(job, EmbedWorker)
        return
    with advise_on_interrupt(_advise(work)), _reserve(folder):
        refuse_occupied(folder)
        counts = on_ray.run(job, EmbedWorker)
        _report_bad(counts, work)
        store = join_units(work, out, counts)
        _tidy(work)
    if on_ray.as_json:
        print_json({**asdict(counts), "store": out})
        return
    tokens = f"{format_count(counts.tokens, 'token')} of D={store.dim}"
    echo(f"Embedded {format_count(counts.rows - counts.bad, 'text')} into {out}: {tokens}.")


def fit_on_ray(
    detector: "Detector", texts: str, out: str, model: str | None, field: str | None, sample: int | None, on_ray: OnRay
) -> None:
    """Fit a detector on a sample of the texts and on statistics of all of them, and set its threshold."""
    from apood.data.inputs import Request
    from apood.detectors.contract.refinable import Refinable
    from apood.encoders.opening import open_encoder
    from apood.fitting.optimise import Checkpoint
    from apood.pipeline.token_cache import TokenCache, describe_source
    from apood.scale.embedding import EmbedWorker
    from apood.scale.engine import connect
    from apood.scale.fitting import draw_sample, fit_sample, refine_and_calibrate
    from apood.scale.job import Job, Settings
    from apood.scale.measuring import MEASURED_RECORDS
    from apood.scale.units import PART_BYTES

    if sample is None or model is None:
        raise InputError("--engine ray fits on texts: give --model, and --sample, the number of texts to train on.")
    _refuse_sounds([texts])
    folder, work, seed = parse_place(out), _find_work(out, "scale"), int(getattr(detector, "seed", 0))
    trained, here = work / "detector", find_work_folder(work)
    settings = Settings(
        folder=_name_for_workers(work / "measured"),
        request=Request(field=field),
        detector=_name_for_workers(trained),
        model=model,
        seed=seed,
        unit_records=MEASURED_RECORDS,
    )
    described = {"method": detector.name, "settings": repr(detector), "sample": sample}
    identity = {**described, "model": describe_source(model, lambda: open_encoder(model))}
    job = Job.plan("measure", [texts], settings, identity, part_bytes=4 * PART_BYTES)
    if on_ray.dry_run:
        encoding = replace(job, settings=replace(job.settings, encoder={"model": model}))
        refines = isinstance(detector, Refinable) and detector.refines
        on_ray.show_estimate(encoding, EmbedWorker if refines else None, commits=False)
        more = ", and statistics: their files and merging them" if refines else ""
        echo(f"Not counted: drawing the sample, embedding it and training on it{more}.", err=True)
        return
    with advise_on_interrupt(_advise(work)), _reserve(folder), connect(on_ray.address):
        job.has_begun()  # another job is refused before anything is read
        cache = TokenCache.of_model(here / "tokens", model)
        shared = parse_place(_name_for_workers(work))
        drawn = draw_sample(job, sample, shared, on_ray.run)
        job.begin()  # only now: what cannot be drawn leaves nothing behind
        fitted, digest = fit_sample(detector, drawn, cache, trained, Checkpoint(here / "checkpoint"))
        facts, counts = refine_and_calibrate(fitted, digest, drawn, cache, job, on_ray.run)
        fitted.save(out, facts=facts.to_json())
        _report_bad(counts, job.place)
        _tidy(work)
    everything = None if counts is None else counts.rows - counts.bad - len(drawn.held_out)
    if on_ray.as_json:
        result = {"method": fitted.name, "sample": len(drawn.training), "held_out": len(drawn.held_out)}
        bad = None if counts is None else counts.bad
        print_json({**result, "measured": everything, "bad": bad, "threshold": fitted.threshold_, "detector": out})
        return
    rest = "" if everything is None else f", learnt statistics of {format_count(everything, 'text')}"
    echo(
        f"Trained {fitted.name} on a sample of {format_count(len(drawn.training), 'text')}{rest}, set the threshold "
        f"with {len(drawn.held_out):,} others, and saved it to {out}."
    )


def _report_bad(counts: "Counts | None", place: Place) -> None:
    """Print why the first documents were skipped, and how many more there are, given the place of the job."""
    from apood.data.record import MOST_REASONS
    from apood.scale.shards import read_errors

    if counts is not None and counts.bad:
        report_skipped(counts.bad, read_errors(place, MOST_REASONS))


def _find_work(out: str, ending: str) -> Place:
    """Return the folder beside the output that keeps what is done."""
    return parse_place(f"{parse_place(out)}.{ending}")


def _name_for_workers(place: Place) -> str:
    """Return a name of a place that means the same in every folder."""
    return str(place.resolve() if isinstance(place, Path) else place)


def _reserve(place: Place) -> AbstractContextManager[None]:
    """Keep other commands from writing to a place on a disk.

    A cloud store has no locks: `Job.begin` writes a claim instead.
    """
    return reserve_path(place) if isinstance(place, Path) else nullcontext()


def _refuse_left(store: Place, work: Place) -> None:
    """Raise InputError if a command was stopped when its store was complete, before it had deleted what it is of."""
    from apood.tokens.store import INDEX_FILE

    if (store / INDEX_FILE).exists() and work.exists():
        raise InputError(f"{store} is there already, and what it was made of is left in {work}: delete the latter.")


def _tidy(work: Place) -> None:
    """Delete what is no longer needed; in a cloud store, nothing is deleted."""
    shutil.rmtree(find_work_folder(work), ignore_errors=not isinstance(work, Path))
    if not isinstance(work, Path):
        echo(f"What workers did is still in {work}, and no longer needed: delete it.", err=True)


def _refuse_sounds(inputs: Sequence[str]) -> None:
    if are_sounds(inputs):
        raise InputError("--engine ray takes texts; leave it out for sounds.")


def _advise(folder: Place) -> Callable[[], str]:
    def describe_kept() -> str:
        if not list_names(folder):
            return "nothing was done yet; run the same command again."
        return f"what is done is in {folder}; run the same command again to continue."

    return describe_kept
