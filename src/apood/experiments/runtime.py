"""The paper's performance measurements (appendix D.9: table 11, figures 7 to 10), on this machine.

As in the paper, a time is the mean and standard deviation of 10 batches that are ready in memory, after 5 batches of
warm-up, and all outputs have one length. Detectors are timed from tokens to scores on the CPU. They are fitted on
random tokens, since the time of scoring does not depend on them.
"""

import json
import math
import platform
import shlex
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.base import Detector
from apood.detectors.deep_svdd import DeepSVDD
from apood.detectors.knn import KNN
from apood.detectors.mahalanobis import Mahalanobis
from apood.experiments.runtime_model import RuntimeModel, load_model, make_random_model
from apood.experiments.runtime_profiles import (
    AP_OOD,
    DEEP_SVDD,
    ENCODER,
    GENERATION,
    MAHALANOBIS,
    PROFILES,
    Case,
    RuntimeProfile,
    choose_profile,
)
from apood.report.canvas import refuse_without_matplotlib
from apood.support.checks import check_choice, format_count
from apood.support.device import resolve_device
from apood.support.errors import FitWarning
from apood.support.files import read_json, refuse_unwritable, source_digest, write_json
from apood.support.progress import progress_bar
from apood.support.provenance import device_name, package_versions
from apood.tokens.batch import TokenBatch

__all__ = ["MANIFEST", "RESULTS", "RuntimePlan", "measure", "plan_runtime"]

RESULTS, MANIFEST = "results.json", "manifest.json"
_PARTIAL = "measured.json"

_LAUNCH = 3e-4  # least seconds of a call of a detector
_LAYER = 4e-4  # least seconds of a layer, per token if it generates
_LOADING = 15.0


@dataclass(frozen=True)
class RuntimePlan:
    """What will be measured.

    Attributes:
        profile: the sizes.
        model: the model.
        cases: the single measurements.
        seconds: the time it will take, about.
        seed: of random weights and batches.
        options: the command-line options.
    """

    profile: RuntimeProfile
    model: RuntimeModel
    cases: list[Case]
    seconds: float
    seed: int
    options: list[str]

    def command(self, out: Path) -> str:
        """Return the command line for the same measurements."""
        return shlex.join(["apood", "bench", "runtime", *self.options, "--out", str(out)])

    @property
    def facts(self) -> dict[str, Any]:
        """What will be measured, for people."""
        profile = self.profile
        return {
            "model": self.model.name,
            "device": device_name(self.model.device),
            "measurements": len(self.cases),
            "batches each": f"{profile.warm_up} to warm up, {profile.measured} measured",
            "usual batch": f"{format_count(profile.batch, 'sequence')} of {format_count(profile.context, 'token')}",
            "outputs": f"{profile.new_tokens} tokens, beams: {profile.beams}" if self.model.generates else "none",
            "takes about": f"{self.seconds:.0f} s" if self.seconds < 120 else f"{self.seconds / 60:.0f} min",
        }


def plan_runtime(
    model: Path | None = None,
    profile: str = "local",
    device: str | None = None,
    seed: int = 0,
    *,
    quick: bool = False,
) -> RuntimePlan:
    """Load the model and return what will be measured.

    Args:
        model: folder of a text model; None for PEGASUS with random weights.
        profile: "paper" for the paper's sizes, "local" for about a minute.
        device: None for a GPU if there is one.
        seed: of random weights and tokens.
        quick: whether everything is tiny, for a first look.
    """
    check_choice("profile", profile, PROFILES)
    refuse_without_matplotlib()  # now rather than after all measurements
    place = resolve_device(device)
    loaded = make_random_model(place, seed, quick=quick) if model is None else load_model(model, place)
    sizes = choose_profile(profile, gpu=place.type == "cuda", quick=quick)
    room = loaded.context - (sizes.new_tokens if loaded.loaded.kind == "causal" else 0)
    sizes = sizes.within(max(1, room))
    cases = [*sizes.model_cases(generates=loaded.generates), *sizes.detector_cases()]
    given = {
        "--model": model,
        "--profile": None if profile == "local" else profile,
        "--device": device,
        "--seed": seed or None,
    }
    options = [word for option, value in given.items() if value is not None for word in (option, str(value))]
    options += ["--quick"] if quick else []
    return RuntimePlan(sizes, loaded, cases, _estimate_seconds(sizes, loaded, cases), seed, options)


def measure(plan: RuntimePlan, out: Path) -> dict[str, Any]:
    """Measure all cases, write results.json and manifest.json to the folder `out`, and return the results.

    Until then, measurements are kept in `measured.json`, from which an interrupted run continues.
    """
    refuse_unwritable(out / RESULTS)
    started = time.perf_counter()
    about = {
        "device": plan.facts["device"],
        "model": plan.model.facts,
        "profile": json.loads(json.dumps(asdict(plan.profile))),
    }
    of = {**about, "seed": plan.seed, "source": source_digest()}
    measurements = _read_kept(out / _PARTIAL, of, plan.cases)
    detectors = _DetectorCache(plan)
    with torch.inference_mode(), progress_bar(len(plan.cases), "measure", initial=len(measurements)) as progress:
        for case in plan.cases[len(measurements) :]:
            measurements.append({**asdict(case), **_time_case(plan, case, detectors)})
            write_json(out / _PARTIAL, {"of": of, "measurements": measurements})
            progress.update()
    results = {**about, "measurements": measurements}
    write_json(out / RESULTS, results)
    write_json(out / MANIFEST, _make_manifest(plan, out, time.perf_counter() - started))
    (out / _PARTIAL).unlink()
    return results


def _read_kept(path: Path, of: dict[str, Any], cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return the measurements of an interrupted run of the same plan; empty if there is none."""
    try:
        content = read_json(path)
        found: list[dict[str, Any]] = content["measurements"] if content["of"] == of else []
        begun = [{name: one[name] for name in asdict(case)} for one, case in zip(found, cases, strict=False)]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return found if begun == [asdict(case) for case in cases[: len(found)]] else []


def _make_manifest(plan: RuntimePlan, out: Path, seconds: float) -> dict[str, Any]:
    return {
        "experiment": "runtime",
        "command": plan.command(out),
        "seed": plan.seed,
        "versions": package_versions(),
        "device": plan.facts["device"],
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }


class _DetectorCache:
    """Fits detectors, and keeps the last one."""

    def __init__(self, plan: RuntimePlan) -> None:
        self._device, self._seed = plan.model.device, plan.seed
        self._kept: tuple[tuple[str, int, int], Detector] | None = None
        self.dim = plan.model.dim
        generator = torch.Generator().manual_seed(plan.seed)
        values = torch.randn(4 * self.dim, self.dim, generator=generator).to(self._device, plan.model.dtype)
        self._train = TokenBatch.from_lengths(values, [2] * (2 * self.dim))

    def get(self, case: Case) -> Detector:
        key = (case.what, case.heads, case.queries)
        if self._kept is None or self._kept[0] != key:
            with warnings.catch_warnings(), torch.inference_mode(mode=False), torch.enable_grad():
                warnings.simplefilter("ignore", FitWarning)  # one step is enough for timing
                self._kept = key, self._fit(case)
        return self._kept[1]

    def _fit(self, case: Case) -> Detector:
        device = str(self._device)
        if case.what == AP_OOD:
            found: Detector = APOOD(
                heads=case.heads, queries=case.queries, recipe="paper", steps=1, seed=self._seed, device=device
            )
        elif case.what == MAHALANOBIS:
            found = Mahalanobis()
        else:
            found = DeepSVDD(steps=1, seed=self._seed) if case.what == DEEP_SVDD else KNN()
        return found.fit(self._train)


def _time_case(plan: RuntimePlan, case: Case, detectors: _DetectorCache) -> dict[str, Any]:
    """Return the mean and standard deviation in milliseconds; both are None if it ran out of memory."""
    try:
        times = _time_batches(plan, _make_runner(plan, case, detectors))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {"mean_ms": None, "deviation_ms": None}
    return {"mean_ms": statistics.mean(times), "deviation_ms": statistics.stdev(times)}


def _make_runner(
    plan: RuntimePlan, case: Case, detectors: _DetectorCache
) -> Callable[[torch.Generator], Callable[[], object]]:
    """Return a function that prepares a batch and returns the call to time."""
    model, profile = plan.model, plan.profile
    if case.what == ENCODER:
        return lambda generator: _bind(model.encode, model.random_ids(case.batch, case.context, generator))
    if case.what == GENERATION:
        return lambda generator: _bind(
            model.generate,
            model.random_ids(case.batch, case.context, generator),
            profile.new_tokens,
            profile.beams,
        )
    detector = detectors.get(case)

    def ready(generator: torch.Generator) -> Callable[[], object]:
        local = torch.Generator(model.device).manual_seed(int(torch.randint(2**31, (), generator=generator)))
        shape = (case.batch * case.context, detectors.dim)
        values = torch.randn(shape, generator=local, device=model.device, dtype=model.dtype)
        return _bind(detector.score_samples, TokenBatch.from_lengths(values, [case.context] * case.batch))

    return ready


def _bind(function: Callable[..., object], *arguments: Any) -> Callable[[], object]:
    return lambda: function(*arguments)


def _time_batches(plan: RuntimePlan, ready: Callable[[torch.Generator], Callable[[], object]]) -> list[float]:
    """Return the milliseconds of each measured batch."""
    generator = torch.Generator().manual_seed(plan.seed)
    times = []
    for number in range(plan.profile.warm_up + plan.profile.measured):
        run = ready(generator)
        _synchronize(plan.model.device)
        started = time.perf_counter()
        run()
        _synchronize(plan.model.device)
        if number >= plan.profile.warm_up:
            times.append((time.perf_counter() - started) * 1e3)
    return times


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _estimate_seconds(profile: RuntimeProfile, model: RuntimeModel, cases: Sequence[Case]) -> float:
    """Return the seconds, from the operations of every case and the speed of a matrix product on this device."""
    rate, dim = _measure_speed(model), model.dim
    named = model.loaded.model.named_parameters()
    weights: int = sum(parameter.numel() for name, parameter in named if "embed" not in name and "shared" not in name)
    if model.loaded.kind == "encoder-decoder":
        weights //= 2  # a token passes through one of the halves
    layers = math.ceil(weights / (12 * dim**2))  # of the usual shape

    def seconds(case: Case) -> float:
        tokens = case.batch * case.context
        if case.what in (ENCODER, GENERATION):
            encoder = layers * _LAYER + 2 * weights * tokens / rate
            outputs = layers * _LAYER + 2 * weights * case.batch * profile.beams / rate
            return encoder + (profile.new_tokens * outputs if case.what == GENERATION else 0)
        return _LAUNCH + 2 * tokens * dim * (case.heads * case.queries + 10) / rate

    batches, first = profile.warm_up + profile.measured, _LOADING if model.device.type == "cuda" else 1.0
    return first + batches * sum(map(seconds, cases))


def _measure_speed(model: RuntimeModel) -> float:
    side = 1024
    square = torch.randn(side, side, generator=torch.Generator().manual_seed(0)).to(model.device, model.dtype)
    best = math.inf
    for _ in range(3):
        _synchronize(model.device)
        started = time.perf_counter()
        torch.mm(square, square)
        _synchronize(model.device)
        best = min(best, time.perf_counter() - started)
    return 2 * side**3 / best
