"""The paper's performance measurements (appendix D.9: table 11, figures 7 to 10), on this machine.

As there, a time is that of a single batch that lies ready, the mean and standard deviation of 10 after 5 that only
warm up, and outputs are forced to one length. Detectors are timed as people call them, from tokens to scores on the
CPU. They are fitted on random tokens, since how long a score takes does not depend on what was learnt.
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
from apood.experiments.runtime_backbone import Backbone, folder_backbone, random_backbone
from apood.experiments.runtime_profiles import (
    AP_OOD,
    DEEP_SVDD,
    ENCODER,
    GENERATION,
    MAHALANOBIS,
    PROFILES,
    Case,
    Profile,
    profile_of,
)
from apood.experiments.versions import device_name, versions
from apood.report.canvas import refuse_without_matplotlib
from apood.support.checks import check_choice, format_count
from apood.support.device import resolve_device
from apood.support.errors import FitWarning
from apood.support.files import read_json, refuse_unwritable, source_digest, write_json
from apood.support.progress import progress_bar
from apood.tokens.batch import TokenBatch

__all__ = ["MANIFEST", "RESULTS", "Plan", "measure", "plan_runtime"]

RESULTS, MANIFEST = "results.json", "manifest.json"
_PARTIAL = "measured.json"

_LAUNCH = 3e-4  # seconds that a detector's call takes at least
_LAYER = 4e-4  # seconds that a layer takes at least, by the token when it generates
_LOADING = 15.0


@dataclass(frozen=True)
class Plan:
    """All that will be measured, with what, about how long it takes, and the options that were given for it."""

    profile: Profile
    backbone: Backbone
    cases: list[Case]
    seconds: float
    seed: int
    options: list[str]

    def command(self, out: Path) -> str:
        """What somebody types for the same."""
        return shlex.join(["apood", "bench", "runtime", *self.options, "--out", str(out)])

    @property
    def facts(self) -> dict[str, Any]:
        """For people."""
        profile = self.profile
        return {
            "model": self.backbone.name,
            "device": device_name(self.backbone.device),
            "measurements": len(self.cases),
            "batches each": f"{profile.warm_up} to warm up, {profile.measured} measured",
            "usual batch": f"{format_count(profile.batch, 'sequence')} of {format_count(profile.context, 'token')}",
            "outputs": f"{profile.new_tokens} tokens, beams: {profile.beams}" if self.backbone.generates else "none",
            "takes about": f"{self.seconds:.0f} s" if self.seconds < 120 else f"{self.seconds / 60:.0f} min",
        }


def plan_runtime(
    model: Path | None = None,
    profile: str = "local",
    device: str | None = None,
    seed: int = 0,
    *,
    quick: bool = False,
) -> Plan:
    """Loads the model and says what is to be measured.

    Args:
        model: folder of a text model; None for PEGASUS with random weights.
        profile: "paper" for the sizes of the paper, "local" for about a minute.
        device: None for a GPU if there is one.
        seed: of random weights, tokens and texts.
        quick: whether everything is tiny, for a first look.
    """
    check_choice("profile", profile, PROFILES)
    refuse_without_matplotlib()  # now rather than when all is measured
    place = resolve_device(device)
    backbone = folder_backbone(model, place) if model is not None else random_backbone(place, seed, quick=quick)
    sizes = profile_of(profile, gpu=place.type == "cuda", quick=quick)
    room = backbone.context - (sizes.new_tokens if backbone.loaded.kind == "causal" else 0)
    sizes = sizes.within(max(1, room))
    cases = [*sizes.model_cases(generates=backbone.generates), *sizes.detector_cases()]
    given = {
        "--model": model,
        "--profile": None if profile == "local" else profile,
        "--device": device,
        "--seed": seed or None,
    }
    options = [word for option, value in given.items() if value is not None for word in (option, str(value))]
    options += ["--quick"] if quick else []
    return Plan(sizes, backbone, cases, _estimate(sizes, backbone, cases), seed, options)


def measure(plan: Plan, out: Path) -> dict[str, Any]:
    """Measures all cases and writes results.json and manifest.json to the folder `out`; returns the results.

    Until all are there, they are kept in `measured.json`: after an interruption the same measurement goes on.
    """
    refuse_unwritable(out / RESULTS)
    started = time.perf_counter()
    about = {
        "device": plan.facts["device"],
        "model": plan.backbone.facts,
        "profile": json.loads(json.dumps(asdict(plan.profile))),
    }
    of = {**about, "seed": plan.seed, "source": source_digest()}
    measurements = _kept(out / _PARTIAL, of, plan.cases)
    detectors = _Detectors(plan)
    with torch.inference_mode(), progress_bar(len(plan.cases), "measure", initial=len(measurements)) as progress:
        for case in plan.cases[len(measurements) :]:
            measurements.append({**asdict(case), **_timed(plan, case, detectors)})
            write_json(out / _PARTIAL, {"of": of, "measurements": measurements})
            progress.update()
    results = {**about, "measurements": measurements}
    write_json(out / RESULTS, results)
    write_json(out / MANIFEST, _manifest(plan, out, time.perf_counter() - started))
    (out / _PARTIAL).unlink()
    return results


def _kept(path: Path, of: dict[str, Any], cases: Sequence[Case]) -> list[dict[str, Any]]:
    """What an interrupted run has measured of the same; nothing if it was about something else."""
    try:
        content = read_json(path)
        found: list[dict[str, Any]] = content["measurements"] if content["of"] == of else []
        begun = [{name: one[name] for name in asdict(case)} for one, case in zip(found, cases, strict=False)]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return found if begun == [asdict(case) for case in cases[: len(found)]] else []


def _manifest(plan: Plan, out: Path, seconds: float) -> dict[str, Any]:
    return {
        "experiment": "runtime",
        "command": plan.command(out),
        "seed": plan.seed,
        "versions": versions(),
        "device": plan.facts["device"],
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }


class _Detectors:
    """Fitted detectors, of which the last one is kept."""

    def __init__(self, plan: Plan) -> None:
        self._device, self._seed = plan.backbone.device, plan.seed
        self._kept: tuple[tuple[str, int, int], Detector] | None = None
        self.dim = plan.backbone.dim
        generator = torch.Generator().manual_seed(plan.seed)
        values = torch.randn(4 * self.dim, self.dim, generator=generator).to(self._device, plan.backbone.dtype)
        self._train = TokenBatch.from_lengths(values, [2] * (2 * self.dim))

    def of(self, case: Case) -> Detector:
        key = (case.what, case.heads, case.queries)
        if self._kept is None or self._kept[0] != key:
            with warnings.catch_warnings(), torch.inference_mode(mode=False), torch.enable_grad():
                warnings.simplefilter("ignore", FitWarning)  # one step is for timing, not for detecting
                self._kept = key, self._fitted(case)
        return self._kept[1]

    def _fitted(self, case: Case) -> Detector:
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


def _timed(plan: Plan, case: Case, detectors: _Detectors) -> dict[str, Any]:
    """Mean and standard deviation in milliseconds; both None where memory did not suffice."""
    try:
        times = _times(plan, _runner(plan, case, detectors))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {"mean_ms": None, "deviation_ms": None}
    return {"mean_ms": statistics.mean(times), "deviation_ms": statistics.stdev(times)}


def _runner(plan: Plan, case: Case, detectors: _Detectors) -> Callable[[torch.Generator], Callable[[], object]]:
    """From a generator to a call on a batch that lies ready."""
    backbone, profile = plan.backbone, plan.profile
    if case.what == ENCODER:
        return lambda generator: _bound(backbone.encode, backbone.random_ids(case.batch, case.context, generator))
    if case.what == GENERATION:
        return lambda generator: _bound(
            backbone.generate,
            backbone.random_ids(case.batch, case.context, generator),
            profile.new_tokens,
            profile.beams,
        )
    detector = detectors.of(case)

    def ready(generator: torch.Generator) -> Callable[[], object]:
        local = torch.Generator(backbone.device).manual_seed(int(torch.randint(2**31, (), generator=generator)))
        shape = (case.batch * case.context, detectors.dim)
        values = torch.randn(shape, generator=local, device=backbone.device, dtype=backbone.dtype)
        return _bound(detector.score_samples, TokenBatch.from_lengths(values, [case.context] * case.batch))

    return ready


def _bound(function: Callable[..., object], *arguments: Any) -> Callable[[], object]:
    return lambda: function(*arguments)


def _times(plan: Plan, ready: Callable[[torch.Generator], Callable[[], object]]) -> list[float]:
    """Milliseconds of the batches that count."""
    generator = torch.Generator().manual_seed(plan.seed)
    times = []
    for number in range(plan.profile.warm_up + plan.profile.measured):
        run = ready(generator)
        _synchronize(plan.backbone.device)
        started = time.perf_counter()
        run()
        _synchronize(plan.backbone.device)
        if number >= plan.profile.warm_up:
            times.append((time.perf_counter() - started) * 1e3)
    return times


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _estimate(profile: Profile, backbone: Backbone, cases: Sequence[Case]) -> float:
    """Seconds, from the operations of every case and how many a second a matrix product has here."""
    rate, dim = _operations_a_second(backbone), backbone.dim
    named = backbone.loaded.model.named_parameters()
    weights: int = sum(parameter.numel() for name, parameter in named if "embed" not in name and "shared" not in name)
    if backbone.loaded.kind == "encoder-decoder":
        weights //= 2  # a token passes through either half
    layers = math.ceil(weights / (12 * dim**2))  # of the usual shape

    def seconds(case: Case) -> float:
        tokens = case.batch * case.context
        if case.what in (ENCODER, GENERATION):
            encoder = layers * _LAYER + 2 * weights * tokens / rate
            outputs = layers * _LAYER + 2 * weights * case.batch * profile.beams / rate
            return encoder + (profile.new_tokens * outputs if case.what == GENERATION else 0)
        return _LAUNCH + 2 * tokens * dim * (case.heads * case.queries + 10) / rate

    batches, first = profile.warm_up + profile.measured, _LOADING if backbone.device.type == "cuda" else 1.0
    return first + batches * sum(map(seconds, cases))


def _operations_a_second(backbone: Backbone, side: int = 1024) -> float:
    square = torch.randn(side, side, generator=torch.Generator().manual_seed(0)).to(backbone.device, backbone.dtype)
    best = math.inf
    for _ in range(3):
        _synchronize(backbone.device)
        started = time.perf_counter()
        torch.mm(square, square)
        _synchronize(backbone.device)
        best = min(best, time.perf_counter() - started)
    return 2 * side**3 / best
