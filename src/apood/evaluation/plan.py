"""What a comparison compares: which methods, on which stores, on how many splits; checked before any work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from itertools import combinations
from pathlib import Path
from typing import Any

from apood.detectors.contract.base import Detector
from apood.detectors.contract.registry import detector_class, list_methods
from apood.evaluation.rows import MEAN
from apood.support.checks import check_integer, format_count, suggest_name
from apood.support.errors import ApoodError, InputError
from apood.tokens.digest import content_digest
from apood.tokens.identity import describe_other, same_encoder
from apood.tokens.store import TokenStore

__all__ = ["ACCEPT", "Method", "Plan", "checked"]

ACCEPT = 0.95
"""The share of ID sequences that the threshold from the validation sequences is to let through."""

_FEWEST_TO_CALIBRATE = 19  # for that share
_RAW_AND_NORMALIZED = ({"normalize": "none"}, {"normalize": "pooled"})
_VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "mahalanobis": _RAW_AND_NORMALIZED,  # published both ways; which is better depends on the encoder
    "knn": _RAW_AND_NORMALIZED,
}
_ONLY_WITH_AUX = "deep-sad"  # deep-svdd otherwise
_NEVER_WITH_AUX = "fusion"  # its member ap-ood shows what AUX are worth


@dataclass(frozen=True)
class Method:
    """A registered method with the parameters that differ from its defaults.

    Args:
        method: its name in the registry.
        parameters: of its constructor. A `seed` is added to that of each split.
        name: what it is called in the results; by default the method with its parameters.
        aux: whether it learns from the AUX sequences, where it can do without them; who cannot always does.
    """

    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    aux: bool = False

    @property
    def label(self) -> str:
        """What it is called in the results."""
        if self.name is not None:
            return self.name
        settings = [f"{key}={value}" for key, value in self.parameters.items()]
        return ", ".join([self.method, *settings, *(["AUX"] if self.aux else [])])

    @property
    def uses_aux(self) -> bool:
        """Whether it learns from the AUX sequences."""
        return self.aux or self.detector().aux == "required"

    @property
    def seeded(self) -> bool:
        """Whether its training is random."""
        return "seed" in signature(detector_class(self.method)).parameters

    def detector(self, seed: int = 0) -> Detector:
        """The detector, not yet fitted; `seed` is added to its own."""
        parameters = dict(self.parameters)
        if self.seeded:
            parameters["seed"] = parameters.get("seed", 0) + seed
        return detector_class(self.method)(**parameters)


@dataclass(frozen=True)
class Plan:
    """Which methods to compare, and on what.

    ID sequences are either two stores, `id_train` and `id_test`, of which every split draws a share at random, or one
    store `id`, which every split parts anew into sequences to learn from and sequences to test on.

    Args:
        ood: stores of OOD sequences by their names.
        id_train: store of ID sequences to learn from.
        id_test: store of ID sequences to test on.
        id: store of ID sequences for both, instead.
        id_validation: store of ID sequences for the threshold; the results then say how many of the test sequences
            it lets through.
        aux: store of auxiliary outliers.
        methods: what to compare; by default all registered methods that can work with these stores.
        test_share: how much of `id` is tested on.
        splits: how many times to repeat everything.
        share: how much of every store a split draws at random; 1 is all, and the splits then differ in the seed of
            the training alone.
        seed: of the first split; the next one has the next seed. Both what a split draws and the training follow it.
    """

    ood: Mapping[str, Path]
    id_train: Path | None = None
    id_test: Path | None = None
    id: Path | None = None
    id_validation: Path | None = None
    aux: Path | None = None
    methods: Sequence[Method] = ()
    test_share: float = 0.2
    splits: int = 5
    share: float = 0.8
    seed: int = 0

    @property
    def stores(self) -> dict[str, Path]:
        """Every store that is given, by its key; that of an OOD set is `ood.NAME`."""
        keys = ("id", "id_train", "id_test", "id_validation", "aux")
        given = {key: getattr(self, key) for key in keys if getattr(self, key) is not None}
        return given | {f"ood.{name}": folder for name, folder in self.ood.items()}


def checked(plan: Plan) -> Plan:
    """The plan with its methods filled in; refused where it could not be carried out to the end."""
    _check_numbers(plan)
    _check_roles(plan)
    stores = {key: _opened(key, folder) for key, folder in plan.stores.items()}
    _check_stores(plan, stores)
    methods = tuple(plan.methods) or _all_methods(plan, stores)
    known: list[Method] = []
    for number, method in enumerate(methods, start=1):
        where = f"Method {number}"
        _check_method(where, method)
        for earlier, other in enumerate(known, start=1):
            if method.label == other.label:
                raise InputError(f"{where} is called {method.label!r} like method {earlier}: give each its own name.")
            if _identity(method) == _identity(other):
                raise InputError(f"{where}, {method.label}, is method {earlier}, {other.label}, under another name.")
        known.append(method)
        if method.uses_aux and plan.aux is None:
            raise InputError(f"{where}, {method.label}, learns from AUX sequences, and aux is not given.")
        if lacking := _lacking(method, stores):
            part, key = lacking
            raise InputError(
                f"{where}, {method.label}, needs {part}, which the store {plan.stores[key]} of {key} lacks."
            )
    _refuse_empty(plan, methods, stores)
    return replace(plan, methods=methods)


def _check_numbers(plan: Plan) -> None:
    check_integer("splits", plan.splits, 1)
    check_integer("seed", plan.seed, 0)
    if not 0 < plan.share <= 1:
        raise InputError(f"share must lie in (0, 1], got {plan.share}.")
    if not 0 < plan.test_share < 1:
        raise InputError(f"test_share must lie in (0, 1), got {plan.test_share}.")


def _check_roles(plan: Plan) -> None:
    given = tuple(key for key in plan.stores if key in ("id", "id_train", "id_test"))
    if given not in (("id",), ("id_train", "id_test")):
        found = " and ".join(given) or "none of them"
        raise InputError(f"The ID sequences are either id_train and id_test, or id alone, got {found}.")
    if not plan.ood:
        raise InputError("ood must name at least one store of OOD sequences, got none.")
    if MEAN in plan.ood:
        raise InputError(f"An OOD set cannot be called {MEAN!r}: that name is kept for the mean over the sets.")


def _opened(key: str, folder: Path) -> TokenStore:
    try:
        return TokenStore(folder)
    except ApoodError as error:
        raise InputError(f"{key}: {error}") from error


def _check_stores(plan: Plan, stores: Mapping[str, TokenStore]) -> None:
    first, reference = next(iter(stores.items()))
    for key, store in stores.items():
        least = 2 if key in ("id", "id_train") else _FEWEST_TO_CALIBRATE if key == "id_validation" else 1
        drawn = len(store) if key == "id" else round(plan.share * len(store))
        if drawn < least:
            part = "" if key == "id" else f", of which a split draws {drawn} (share {plan.share:g})"
            raise InputError(
                f"The store {plan.stores[key]} of {key} has {format_count(len(store), 'sequence')}{part}, "
                f"and at least {least} are needed."
            )
        if store.dim != reference.dim:
            raise InputError(
                f"{key} has tokens with D={store.dim}, {first} with D={reference.dim}: they must be equal."
            )
        if not same_encoder(store.encoder, reference.encoder):
            raise InputError(
                f"{key} has tokens from another encoder ({describe_other(store.encoder, reference.encoder)}) than "
                f"{first} ({describe_other(reference.encoder, store.encoder)}): they must come from one."
            )
    if plan.id is not None and not 0 < round(plan.test_share * len(stores["id"])) < len(stores["id"]) - 1:
        raise InputError(
            f"A test_share of {plan.test_share} parts the {len(stores['id'])} sequences of the store {plan.id} of id "
            "so that fewer than 2 are left to learn from or none to test on."
        )
    digests = {key: content_digest(store) for key, store in stores.items()}
    for one, other in combinations(stores, 2):
        if digests[one] == digests[other]:
            raise InputError(f"{one} and {other} are the same sequences: each must be data of its own.")


def _refuse_empty(plan: Plan, methods: Sequence[Method], stores: Mapping[str, TokenStore]) -> None:
    """Nothing can be learnt from a sequence without tokens; a fit finds it late, under its number in a split."""
    readers = [method for method in methods if "tokens" in method.detector().requires]
    learners = {"id": readers, "id_train": readers, "aux": [method for method in readers if method.uses_aux]}
    for key, store in stores.items():
        if learners.get(key) and len(empty := (store.lengths == 0).nonzero()):
            raise InputError(
                f"Sequence {int(empty[0])} of the store {plan.stores[key]} of {key} has no tokens; "
                "remove empty sequences from what is learnt from."
            )


def _check_method(where: str, method: Method) -> None:
    try:
        kind = detector_class(method.method)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    allowed = list(signature(kind).parameters)
    for key in method.parameters:
        if key not in allowed:
            there = f"there are {', '.join(allowed)}" if allowed else "it has none"
            raise InputError(f"{where}: {method.method} has no parameter {key!r}{suggest_name(key, allowed)}; {there}.")
    try:
        detector = method.detector()
        detector.check_parameters()
    except (InputError, TypeError, ValueError) as error:
        raise InputError(
            f"{where}: the parameters of {method.method} are not allowed: {str(error).rstrip('.')}."
        ) from error
    if method.aux and detector.aux == "unused":
        raise InputError(f"{where}: {method.method} learns from in-distribution data alone, so aux cannot be true.")


def _identity(method: Method) -> tuple[str, dict[str, Any], bool]:
    """What makes two fits on the same data the same."""
    detector = method.detector()
    return detector.name, detector.get_params(deep=False), method.uses_aux


def _lacking(method: Method, stores: Mapping[str, TokenStore]) -> tuple[str, str] | None:
    """What the method looks at and which store lacks it, if one does; AUX counts only where it is used."""
    used = {key: store for key, store in stores.items() if key != "aux" or method.uses_aux}
    for part in sorted(method.detector().requires):
        for key, store in used.items():
            if not (store.tokens if part == "tokens" else part in store.channels):
                return part, key
    return None


def _all_methods(plan: Plan, stores: Mapping[str, TokenStore]) -> tuple[Method, ...]:
    """Every registered method that the stores allow, with AUX too where that is a choice and makes a difference."""
    found: list[Method] = []
    for name in list_methods():
        alone = [Method(name, parameters) for parameters in _VARIANTS.get(name, ({},))]
        use = alone[0].detector().aux
        variants = [] if name == _ONLY_WITH_AUX or (use == "required" and plan.aux is None) else alone
        if use == "optional" and name != _NEVER_WITH_AUX and plan.aux is not None:
            variants = variants + [replace(variant, aux=True) for variant in alone]
        found += [variant for variant in variants if _lacking(variant, stores) is None]
    if not found:
        raise InputError("No registered method can work with these stores: see `apood methods` for what each needs.")
    return tuple(found)
