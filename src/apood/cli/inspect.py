"""`apood inspect`."""

from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.arguments import default_parameters, describe_unfinished
from apood.cli.output import echo, print_facts, print_json
from apood.support.checks import format_count
from apood.support.cloud import parse_place
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.detectors.ap_ood.detector import APOOD
    from apood.detectors.contract.base import Detector

__all__ = ["inspect"]

_DECISION = ("threshold_", "accept_", "calibration_scores_")


def inspect(
    given: Annotated[str, typer.Argument(metavar="STORE_OR_DETECTOR", help="A token store or a saved detector.")],
    verify: Annotated[bool, typer.Option("--verify", help="Also read the whole store and check its hashes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the content of a token store or a detector. The hash of a detector is always checked."""
    from apood.detectors.contract.artefact import CONFIG_FILE
    from apood.tokens.store import INDEX_FILE

    folder = parse_place(given)
    if (folder / INDEX_FILE).is_file():
        facts = _describe_store(str(folder), verify)
    elif (folder / CONFIG_FILE).is_file():
        facts = _describe_detector(str(folder))
    elif not folder.exists():
        raise InputError(f"There is no token store or detector {str(folder)!r}: the path does not exist.")
    else:
        raise InputError(
            f"{folder} is neither a token store (no {INDEX_FILE}) nor a saved detector (no {CONFIG_FILE})."
        )
    if as_json:
        print_json(facts)
    else:
        members = facts.get("learnt", {}).get("members_")  # the shapes of tensors are for --json only
        trained = [_format_trained(**one) for one in facts.get("trained", [])]
        shown = {name: value for name, value in facts.items() if name not in ("learnt", "trained")}
        print_facts(
            shown
            | ({"members": "\n".join(members)} if members else {})
            | ({"trained": "\n".join(trained)} if trained else {})
        )
        if facts.get("complete") is False:
            echo(describe_unfinished(given, facts["sequences"]))


def _describe_store(folder: str, verify: bool) -> dict[str, Any]:
    import numpy as np

    from apood.tokens.batch import dtype_name
    from apood.tokens.documents import count_documents
    from apood.tokens.store import TokenStore

    store = TokenStore(folder)
    index = store.index
    if verify:
        store.verify()
    lengths = store.lengths.numpy()
    return {
        "kind": "store",
        "folder": folder,
        "sequences": len(store),
        "documents": count_documents(store),
        "tokens": store.tokens,
        "dim": store.dim,
        "dtype": dtype_name(store.dtype),
        "bytes": sum(shard.bytes for shard in index.shards),
        "lengths": {
            name: float(find(lengths)) for name, find in (("min", np.min), ("median", np.median), ("max", np.max))
        }
        if len(lengths)
        else None,
        "channels": {name: str(kind) for name, kind in index.channels.items()},
        "encoder": store.encoder,
        "shards": len(index.shards),
        "tally": dict(index.tally) or None,
        "complete": not index.unfinished,
        "verified": verify,
    }


def _describe_detector(folder: str) -> dict[str, Any]:
    from torch import Tensor

    from apood.pipeline.facts import load_detector_and_facts

    detector, known = load_detector_and_facts(folder)
    learnt = {
        name: list(value.shape) if isinstance(value, Tensor) else _to_plain(value)
        for name, value in vars(detector).items()
        if name.endswith("_") and name not in ("dim_", "encoder_", "fitted_on_", *_DECISION)
    }
    return {
        "kind": "detector",
        "folder": folder,
        "method": detector.name,
        "parameters": {name: _to_plain(getattr(detector, name)) for name in default_parameters(type(detector))},
        "dim": detector.dim_,
        "learnt": learnt,
        "trained": [_describe_trained(found) for found in _list_trained(detector)],
        "encoder": detector.encoder_,
        "training": None if known.training is None else known.training.to_json(),
        "calibration": {
            "threshold": detector.threshold_,
            "accept": detector.accept_,
            "sequences": len(detector.calibration_scores_),
            **({} if known.calibration is None else known.calibration.to_json()),
        }
        if hasattr(detector, "threshold_")
        else None,
        "versions": dict(known.versions) or None,
    }


def _list_trained(detector: "Detector") -> "Iterator[APOOD]":
    """Yield the AP-OOD detectors among a detector and its members."""
    from apood.detectors.ap_ood.detector import APOOD

    if isinstance(detector, APOOD):
        yield detector
    for member in getattr(detector, "members_", []):
        yield from _list_trained(member)


def _describe_trained(detector: "APOOD") -> dict[str, Any]:
    """Return the settings that the fit used: its defaults depend on the data, and on whether there was a GPU."""
    points = detector.training_curve_.points
    return {
        "method": detector.name,
        "heads": detector.queries_.shape[0],
        "queries": detector.queries_.shape[1],
        "beta": detector.beta_,
        "steps": points[-1].step + 1 if points else None,
    }


def _format_trained(method: str, heads: int, queries: int, beta: float, steps: int | None) -> str:
    parts = [format_count(heads, "head"), f"{queries:,} {'query' if queries == 1 else 'queries'} per head"]
    parts += [f"β {beta:.4g}", *([] if steps is None else [format_count(steps, "step")])]
    return f"{method}: {', '.join(parts)}"


def _to_plain(value: Any) -> Any:
    """Return a list of detectors, such as the members of a fusion, as texts, and a dataclass as its fields."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [str(item) for item in value] if isinstance(value, list) else value
