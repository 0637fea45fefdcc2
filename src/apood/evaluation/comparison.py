"""Comparisons of methods: the plan, in Python or from a TOML file, its checks, and the results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from apood.data.inputs import refuse_repeated_stdin, resolve_input
from apood.detectors.contract.base import Detector
from apood.detectors.contract.data_checks import refuse_incompatible
from apood.detectors.contract.registry import list_methods
from apood.evaluation.cost import Cost
from apood.evaluation.entry import Entry
from apood.evaluation.result import MEAN, Result
from apood.evaluation.split import Split, draw_share
from apood.evaluation.study import run_study
from apood.pipeline.checks import refuse_same_data
from apood.support.checks import check_integer, check_number, format_count, suggest_name
from apood.support.errors import ApoodError, InputError
from apood.support.files import read_toml
from apood.support.version import __version__
from apood.tokens.documents import count_documents
from apood.tokens.identity import FOLDER, EncoderIdentity
from apood.tokens.source import TokenSource, as_source, split
from apood.tokens.store import TokenStore, find_store

__all__ = ["Comparison", "ComparisonPlan", "check_plan", "compare", "draw_splits", "find_sets", "read_plan"]

_FEWEST_TO_CALIBRATE = 19  # for a threshold that accepts 95%
_RAW_AND_NORMALIZED = ({"normalize": "none"}, {"normalize": "pooled"})
_VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    # Both were published both ways, and which is better depends on the encoder.
    "mahalanobis": _RAW_AND_NORMALIZED,
    "knn": _RAW_AND_NORMALIZED,
}
_ONLY_WITH_AUX = "deep-sad"  # without AUX sequences it is deep-svdd

_KINDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}
_SET_KEYS = ("id", "id_train", "id_test", "id_validation", "aux")
_NUMBER_KEYS = ("splits", "share", "seed", "test_share")
_TOP_KEYS = {"splits": int, "share": float, "seed": int, "data": dict, "methods": list}
_DATA_KEYS = {**dict.fromkeys(_SET_KEYS, str), "test_share": float, "ood": dict}
_METHOD_KEYS = {"method": str, "name": str, "aux": bool, "parameters": dict}


@dataclass(frozen=True)
class ComparisonPlan:
    """Which methods to compare, and on which data.

    A set of sequences is the folder of a token store, or anything that `Detector.fit` takes, such as a list of arrays.
    ID sequences are either two sets, `id_train` and `id_test`, from which every split draws a share at random, or one
    set `id`, which every split divides at random into sequences to fit on and sequences to test on.

    Attributes:
        ood: sets of OOD sequences by name.
        id_train: ID sequences to fit on.
        id_test: ID sequences to test on.
        id: ID sequences for both, instead.
        id_validation: ID sequences to set a threshold with. The results then say how many of the test sequences it
            accepts.
        aux: auxiliary outliers.
        methods: names of methods, classes, detectors, or entries, which have a label and may learn from AUX sequences;
            by default all registered methods that can work with the data.
        test_share: share of `id` to test on.
        splits: number of repetitions.
        share: share of every set that a split draws at random. With 1 the splits differ in the seed of the training
            alone.
        seed: seed of the first split; each further split adds 1. It determines both the draw and the training.
        names: what the sets were found by, by their keys, for the results; texts are found as stores of their tokens.
    """

    ood: Mapping[str, Any]
    id_train: Any = None
    id_test: Any = None
    id: Any = None
    id_validation: Any = None
    aux: Any = None
    methods: Sequence[Entry | str | type[Detector] | Detector] = ()
    test_share: float = 0.2
    splits: int = 5
    share: float = 0.8
    seed: int = 0
    names: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def sets(self) -> dict[str, Any]:
        """Every set as it was given, by its key; the key of an OOD set is `ood.NAME`."""
        given = {key: getattr(self, key) for key in _SET_KEYS if getattr(self, key) is not None}
        return given | {f"ood.{name}": data for name, data in self.ood.items()}

    @property
    def stores(self) -> dict[str, Path]:
        """The folders among the sets."""
        return {key: find_store(data) for key, data in self.sets.items() if isinstance(data, str | Path)}

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The methods as entries."""
        return tuple(map(Entry.from_method, self.methods))


@dataclass(frozen=True)
class Comparison:
    """The results of a plan.

    Attributes:
        plan: the checked plan.
        results: one for each entry of the plan, in its order.
        encoder: what made the tokens; None if it is unknown.
    """

    plan: ComparisonPlan
    results: list[Result]
    encoder: EncoderIdentity | None = None

    @property
    def datasets(self) -> list[str]:
        """The OOD sets and, last, their mean."""
        return [*self.plan.ood, MEAN]

    def to_json(self) -> dict[str, Any]:
        """Return all figures as plain JSON; metrics are in percent."""
        plan, encoder = self.plan, self.encoder
        return {
            "apood": __version__,
            "splits": plan.splits,
            "share": plan.share,
            "seed": plan.seed,
            "stores": {key: _describe_set(plan.names.get(key, data)) for key, data in plan.sets.items()},
            "encoder": None if encoder is None else {name: encoder[name] for name in encoder if name != FOLDER},
            **({} if plan.id is None else {"test_share": plan.test_share}),
            "methods": [result.to_json() for result in self.results],
        }


def compare(
    plan: ComparisonPlan,
    *,
    cache: Path | None = None,
    jobs: int = 1,
    announce: Callable[[Cost], object] | None = None,
) -> Comparison:
    """Fit and evaluate every entry of the plan on every split.

    Fits and scores are kept in `cache`, so that an interrupted comparison continues and a changed plan costs only what
    is new; None keeps nothing. With several `jobs`, as many processes share the cores, and the measured seconds are
    those of processes that slow each other down. An entry that cannot be fitted or scored has `failures` instead of
    figures and stops no other; if all fail, an InputError is raised. `announce` is called before the work with what the
    fits will cost; an error that it raises stops everything.
    """
    plan = check_plan(plan)
    check_integer("jobs", jobs, 1)
    splits = draw_splits(plan)
    entries = [(entry, splits) for entry in plan.entries]
    results = run_study(
        entries, cache=cache, jobs=jobs if jobs > 1 else None, what="methods", label="compare", announce=announce
    )
    return Comparison(plan, results, splits[0].train.encoder)


def draw_splits(plan: ComparisonPlan) -> list[Split]:
    """Return the splits of a checked plan.

    The draw of a set depends on its size and the seed alone, not on the other sets.
    """
    stores = {key: _open_set(data) for key, data in plan.sets.items()}
    found = []
    for seed in range(plan.seed, plan.seed + plan.splits):
        sets = {key: draw_share(store, plan.share, seed) for key, store in stores.items() if key != "id"}
        if "id" in stores:
            sets["id_train"], sets["id_test"] = split(stores["id"], plan.test_share, seed)
        found.append(
            Split(
                train=sets["id_train"],
                test=sets["id_test"],
                ood={name: sets[f"ood.{name}"] for name in plan.ood},
                aux=sets.get("aux"),
                validation=sets.get("id_validation"),
                seed=seed,
            )
        )
    return found


# plans from files


def read_plan(path: Path, find: Callable[[str], Any] = find_store) -> ComparisonPlan:
    """Return the checked plan of a TOML file; paths are relative to the file.

    `find` returns the set for a name, which may be that of something else than a store, such as texts.
    """
    try:
        content = read_toml(path)
    except OSError as error:
        raise InputError(f"The plan {path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # of TOML and of UTF-8
        raise InputError(f"The plan {path} is not TOML: {error}.") from error
    try:
        return check_plan(find_sets(_parse_plan(content, path.parent), find))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def find_sets(plan: ComparisonPlan, find: Callable[[str], Any]) -> ComparisonPlan:
    """Return a plan of names with the sets that `find` returns for them, after all checks that need no data."""
    _check_declared(plan)
    refuse_repeated_stdin(plan.sets.values())
    found = {key: find(name) for key, name in plan.sets.items()}
    return replace(_replace_sets(plan, found), names=plan.sets)


def _replace_sets(plan: ComparisonPlan, sets: Mapping[str, Any]) -> ComparisonPlan:
    ood = {name: sets[f"ood.{name}"] for name in plan.ood}
    return replace(plan, ood=ood, **{key: sets[key] for key in _SET_KEYS if key in sets})


def _parse_plan(content: dict[str, Any], folder: Path) -> ComparisonPlan:
    """Return the plan with the names of its sets, whose files lie below a folder."""
    _check_table("the plan", content, _TOP_KEYS)
    data = content.get("data")
    if data is None:
        raise InputError("The table [data], which names the stores, is missing.")
    _check_table("[data]", data, _DATA_KEYS)
    ood = data.get("ood", {})
    _check_table("[data.ood]", ood, dict.fromkeys(ood, str))
    methods = content.get("methods", [])
    if "methods" in content and not methods:
        raise InputError("methods is empty: name some as [[methods]], or leave it out to compare all methods.")
    if "test_share" in data and "id" not in data:
        raise InputError("test_share is for id, which a split divides: leave it out beside id_train and id_test.")
    numbers = {key: table[key] for table in (content, data) for key in _NUMBER_KEYS if key in table}
    sets: dict[str, Any] = {key: resolve_input(data[key], folder) for key in _SET_KEYS if key in data}
    return ComparisonPlan(
        ood={name: resolve_input(given, folder) for name, given in ood.items()},
        methods=tuple(_parse_entry(number, table) for number, table in enumerate(methods, start=1)),
        **sets,
        **numbers,
    )


def _parse_entry(number: int, table: Any) -> Entry:
    where = f"method {number}"
    if not isinstance(table, dict):
        raise InputError(f"methods must be a list of tables, got {table!r}.")
    _check_table(where, table, _METHOD_KEYS)
    if "method" not in table:
        raise InputError(
            f"The key method is missing in {where}: it names a method that `apood methods` lists, or module:Class."
        )
    return Entry(**table | {"aux": "all" if table.get("aux") else 0})


def _check_table(where: str, table: dict[str, Any], allowed: dict[str, type]) -> None:
    for key, value in table.items():
        if key not in allowed:
            raise InputError(
                f"There is no key {key!r}{suggest_name(key, allowed)} in {where}; allowed are {', '.join(allowed)}."
            )
        kind = allowed[key]
        kinds = (int, float) if kind is float else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"{key} in {where} must be {_KINDS[kind]}, got {value!r}.")


# checks


def check_plan(plan: ComparisonPlan) -> ComparisonPlan:
    """Return the plan with its entries and arrays as batches; raise an InputError if it cannot be carried out."""
    _check_declared(plan)
    stores = {key: _open_named_set(key, data) for key, data in plan.sets.items()}
    plan = _replace_sets(plan, {key: plan.stores.get(key, source) for key, source in stores.items()})
    _check_stores(plan, stores)
    entries = plan.entries or _list_all_entries(plan, stores)
    for number, entry in enumerate(entries, start=1):
        if lacking := _find_lacking(entry, stores):
            part, key = lacking
            raise InputError(f"Method {number}, {entry.label}, needs {part}, which the {_name_set(plan, key)} lacks.")
    _refuse_empty_sequences(plan, entries, stores)
    return replace(plan, methods=entries)


def _check_declared(plan: ComparisonPlan) -> None:
    """Raise an InputError for what is wrong with a plan whatever its data are."""
    _check_numbers(plan)
    _check_roles(plan)
    entries = plan.entries
    for number, entry in enumerate(entries, start=1):
        _check_entry(number, entry, entries[: number - 1], plan)


def _check_numbers(plan: ComparisonPlan) -> None:
    check_integer("splits", plan.splits, 1)
    check_integer("seed", plan.seed, 0)
    check_number("share", plan.share, above=0, most=1)
    check_number("test_share", plan.test_share, above=0, below=1)


def _check_roles(plan: ComparisonPlan) -> None:
    given = tuple(key for key in plan.sets if key in ("id", "id_train", "id_test"))
    if given not in (("id",), ("id_train", "id_test")):
        found = " and ".join(given) or "none of them"
        raise InputError(f"The ID sequences are either id_train and id_test, or id alone, got {found}.")
    if not plan.ood:
        raise InputError("ood must name at least one set of OOD sequences, got none.")
    if MEAN in plan.ood:
        raise InputError(f"An OOD set cannot be called {MEAN!r}: that name is kept for the mean over the sets.")


def _open_set(data: Any) -> TokenSource:
    return TokenStore(data) if isinstance(data, str | Path) else as_source(data)


def _open_named_set(key: str, data: Any) -> TokenSource:
    try:
        return _open_set(data)
    except ApoodError as error:
        raise InputError(f"{key}: {error}") from error


def _describe_set(data: Any) -> str:
    return str(data) if isinstance(data, str | Path) else format_count(len(data), "sequence")


def _name_set(plan: ComparisonPlan, key: str) -> str:
    return f"store {plan.stores[key]} of {key}" if key in plan.stores else f"set {key}"


def _check_stores(plan: ComparisonPlan, stores: Mapping[str, TokenSource]) -> None:
    first, reference = next(iter(stores.items()))
    for key, store in stores.items():
        least = 2 if key in ("id", "id_train") else _FEWEST_TO_CALIBRATE if key == "id_validation" else 1
        count = count_documents(store)
        drawn = count if key == "id" else round(plan.share * count)
        if drawn < least:
            part = "" if key == "id" else f"; a split draws {drawn} of them (share {plan.share:g})"
            raise InputError(
                f"The {_name_set(plan, key)} has {format_count(count, 'sequence')}{part}, "
                f"and at least {least} are needed."
            )
        refuse_incompatible(store, reference, {"tokens"}, key, first)
    count = 0 if plan.id is None else count_documents(stores["id"])
    if plan.id is not None and not 0 < round(plan.test_share * count) < count - 1:
        raise InputError(
            f"A test_share of {plan.test_share} divides the {count} sequences of the {_name_set(plan, 'id')} "
            "so that fewer than 2 are left to fit on or none to test on."
        )
    refuse_same_data(stores)


def _check_entry(number: int, entry: Entry, earlier: Sequence[Entry], plan: ComparisonPlan) -> None:
    where = f"Method {number}"
    try:
        entry.check()
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    for place, other in enumerate(earlier, start=1):
        if entry.label == other.label:
            raise InputError(f"{where} is called {entry.label!r} like method {place}: give each its own name.")
        if entry.identity == other.identity:
            raise InputError(f"{where}, {entry.label}, is method {place}, {other.label}, under another name.")
    if entry.uses_aux and plan.aux is None:
        raise InputError(f"{where}, {entry.label}, learns from AUX sequences, and aux is not given.")


def _find_lacking(entry: Entry, stores: Mapping[str, TokenSource]) -> tuple[str, str] | None:
    """Return what the entry reads and the key of a store that lacks it, if one does."""
    detector = entry.make_detector()
    learnt = detector.aux_requires if entry.uses_aux else frozenset()
    for part in sorted(detector.requires):
        for key, store in stores.items():
            is_read = key != "aux" or part in learnt
            if is_read and not (store.lengths.any() if part == "tokens" else part in store.channels):
                return part, key
    return None


def _refuse_empty_sequences(plan: ComparisonPlan, entries: Sequence[Entry], stores: Mapping[str, TokenSource]) -> None:
    """Raise an InputError if there is nothing to learn from a sequence; a fit would find it late, and misnumbered."""
    readers = [entry for entry in entries if "tokens" in entry.requires]
    learners = {"id": readers, "id_train": readers, "aux": [entry for entry in readers if entry.uses_aux]}
    for key, store in stores.items():
        if learners.get(key) and len(empty := (store.lengths == 0).nonzero()):
            raise InputError(
                f"Sequence {int(empty[0])} of the {_name_set(plan, key)} has no tokens; "
                "remove empty sequences from the data to fit on."
            )


def _list_all_entries(plan: ComparisonPlan, stores: Mapping[str, TokenSource]) -> tuple[Entry, ...]:
    """Return every registered method that the stores allow, also with AUX sequences if these are optional."""
    found: list[Entry] = []
    for name in list_methods():
        alone = [Entry(name, parameters) for parameters in _VARIANTS.get(name, ({},))]
        use = alone[0].make_detector().aux
        variants = [] if name == _ONLY_WITH_AUX or (use == "required" and plan.aux is None) else alone
        if use == "optional" and plan.aux is not None:
            variants = variants + [replace(variant, aux="all") for variant in alone]
        found += [variant for variant in variants if _find_lacking(variant, stores) is None]
    if not found:
        raise InputError("No registered method can work with these stores: see `apood methods` for what each needs.")
    return tuple(found)
