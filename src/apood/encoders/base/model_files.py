"""The files in a model's folder: which hold the weights, and what is refused before transformers opens any of them.

A folder from elsewhere may not run code, name files outside it, reach a hub, or ask for far more memory than its
weights take.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from apood.support.checks import shorten
from apood.support.errors import InputError
from apood.support.files import MOST_TEXT_BYTES, open_regular, parse_json, read_json, refuse_irregular

__all__ = ["check_model_files", "find_weight_files", "read_weight_header"]

_TEXT_ENDINGS = (".json", ".txt", ".model", ".spm", ".jinja")
_MOST_HEADER_BYTES = 100_000_000  # the limit of safetensors itself
# Methods that run packages installed here. Others fetch their kernels from a hub.
_QUANTISATIONS = ("bitsandbytes", "gptq", "awq", "compressed-tensors")
# Models that fetch their kernels from a hub if the package `kernels` is installed.
_FETCHING_MODELS = ("rwkv", "yoso", "mra")
# Layers may share their weights, so that a small number of them needs no tensors of its own.
_SHARED_LAYERS = 256
_LAYER_KEYS = ("layer", "hidden_group", "inner_group", "block")
_SIZE_KEYS = ("size", "dim", "heads", "experts", "labels", "d_model", "d_ff", "d_kv", "n_embd", "n_inner", "n_head")
_SIZE_FACTOR = 64  # a size of the configuration is at most this times the largest size of a tensor
_SMALL_SIZE = 256  # tensors are taken to have at least this size
_MOST_POSITIONS = 1 << 27


def find_weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that hold the weights of the model in `folder`; an empty list if there are none."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        return []
    try:
        names = set(read_json(index)["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{index} is not a JSON index of weight files with a 'weight_map'.") from error
    for name in sorted(names, key=str):
        if not isinstance(name, str) or Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise InputError(
                f"{index} names the weight file {name!r}, but weights are only loaded from .safetensors files "
                "in the model's own folder: save the model as safetensors."
            )
        if not (folder / name).is_file():
            raise InputError(f"{index} names the weight file {name!r}, which is not in {folder}.")
    return [folder / name for name in sorted(names)]


def check_model_files(folder: Path) -> None:
    """Raise InputError if the folder holds something that apood does not let transformers open."""
    for path in folder.iterdir():
        if not path.exists():  # a link to nothing
            if path.suffix in _TEXT_ENDINGS:  # tokenizers without one of their files may load and give other tokens
                raise InputError(f"{str(path)!r} is a link to nothing: remove it, or restore the file.")
            continue
        try:
            refuse_irregular(path)
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be read: {error.strerror}.") from error
        if path.suffix in _TEXT_ENDINGS and path.stat().st_size > MOST_TEXT_BYTES:
            raise InputError(
                f"{str(path)!r} has {path.stat().st_size:,} bytes, but the limit for such a file is "
                f"{MOST_TEXT_BYTES >> 20} MiB."
            )
    if (folder / "adapter_config.json").exists():
        raise InputError(
            f"The model folder {str(folder)!r} has an adapter (adapter_config.json), whose weights may lie anywhere: "
            "merge the adapter into the weights and save the model without it."
        )
    path = folder / "config.json"
    try:
        config = read_json(path)
    except (OSError, ValueError) as error:
        raise InputError(
            f"The model in {str(folder)!r} cannot be loaded: config.json is not JSON ({error})."
        ) from error
    if not isinstance(config, dict):
        raise InputError(f"The model in {str(folder)!r} cannot be loaded: config.json is not a JSON object.")
    architectures = config.get("architectures") or []
    if not (isinstance(architectures, list) and all(isinstance(name, str) for name in architectures)):
        raise InputError(f"{path} must have a list of names as 'architectures', got {shorten(architectures)}.")
    shapes = [shape for file in find_weight_files(folder) for shape in _read_shapes(file)]
    most_layers = max(_SHARED_LAYERS, len(shapes))
    largest = max(_SMALL_SIZE, *(size for shape in shapes for size in shape))
    for key, value in _iterate_settings(config):
        _refuse_fetching(path, key, value)
        if isinstance(value, int):
            if "position" in key:
                limit, why = _MOST_POSITIONS, "the limit is"
            elif any(part in key for part in _LAYER_KEYS) and "size" not in key and "dim" not in key:
                limit, why = most_layers, f"its weights have {len(shapes):,} tensors, so the limit is"
            elif key.endswith(_SIZE_KEYS):
                limit, why = _SIZE_FACTOR * largest, "its weights are far smaller, so the limit is"
            else:
                continue
            if value > limit:
                number = f"{value:,}" if value < 1 << 64 else f"a number of {value.bit_length()} bits"
                raise InputError(
                    f"{path} sets {key!r} to {number}, but {why} {limit:,}. "
                    "The configuration and the weights do not belong together, or one of them is damaged."
                )


def _refuse_fetching(path: Path, key: str, value: Any) -> None:
    """Raise InputError for a setting that makes transformers load other files or fetch code."""
    if key == "transformers_weights" and value is not None:
        raise InputError(
            f"{path} names its weights ({key!r}), but they are only loaded from model.safetensors: remove the key."
        )
    if key == "quantization_config" and value is not None:
        method = value.get("quant_method", "bitsandbytes") if isinstance(value, dict) else None
        if method not in _QUANTISATIONS:
            raise InputError(
                f"{path} asks for the quantisation {method!r}, which may fetch code from a hub: "
                f"allowed are {', '.join(_QUANTISATIONS)}, and weights that are not quantised."
            )
    if key == "model_type" and value in _FETCHING_MODELS and importlib.util.find_spec("kernels"):
        raise InputError(
            f"{path} has the model_type {value!r}, for which transformers fetches code from a hub because the package "
            "kernels is installed: uninstall it, or use another model."
        )


def _iterate_settings(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield all keys and values of a configuration and of those inside it. The values of lists have their key."""
    remaining: list[tuple[str, Any]] = list(config.items())
    while remaining:
        key, value = remaining.pop()
        yield key, value
        if isinstance(value, dict) and key not in ("id2label", "label2id"):
            remaining.extend(value.items())
        elif isinstance(value, list):
            remaining.extend((key, item) for item in value)


def _read_shapes(path: Path) -> list[list[int]]:
    try:
        with open_regular(path) as file:
            _, header = read_weight_header(file)
        shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
        if not all(isinstance(size, int) for shape in shapes for size in shape):
            raise TypeError("a shape has other values than integers")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            f"The weights {str(path)!r} cannot be loaded: they have no proper header ({error})."
        ) from error
    # A shape cannot promise more than the file holds: every value takes at least half a byte.
    most = 2 * path.stat().st_size
    return [[min(size, most) for size in shape] for shape in shapes]


def read_weight_header(file: BinaryIO) -> tuple[bytes, Any]:
    """Return the beginning of a safetensors file up to the first tensor, as bytes and parsed."""
    size = file.read(8)
    length = int.from_bytes(size, "little")
    if len(size) < 8 or length > _MOST_HEADER_BYTES:
        raise ValueError(f"its length of {length:,} bytes is above the limit of {_MOST_HEADER_BYTES:,}")
    header = file.read(length)
    return size + header, parse_json(header)
