"""Pretrained models: found in a folder or on the Hugging Face hub, fingerprinted, and loaded, never from pickle."""

import contextlib
import hashlib
import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch
from torch import nn

from apood.support.checks import import_optional
from apood.support.errors import InputError
from apood.support.files import read_json, sha256_of
from apood.tokens.identity import FOLDER

__all__ = [
    "AUDIO_MODEL_TYPE",
    "GENERATING",
    "Kind",
    "LoadedTextModel",
    "Pretrained",
    "find_kind",
    "find_pretrained",
    "find_weight_files",
    "fingerprint",
    "is_audio_model",
    "load_config",
    "load_model",
    "load_text_model",
    "load_tokenizer",
    "silence_transformers",
]


Kind = Literal["encoder", "classifier", "causal", "encoder-decoder"]
GENERATING: tuple[Kind, ...] = ("causal", "encoder-decoder")
"""The kinds that have a head to generate with."""
AUDIO_MODEL_TYPE = "audio-spectrogram-transformer"

_PATH_BEGINNINGS = ("./", "../", "~")  # of what no hub id is
_NEEDED_FILES = ["*.json", "*.txt", "*.model", "*.spm", "model.safetensors", "model-*.safetensors"]
# Sinusoidal positions are computed, the bias of logits is zero unless it is given; poolers are not read.
_COMPUTED = ("embed_positions", "final_logits_bias")
_MAY_LACK = ("pooler", *_COMPUTED)
# How the names of model classes with a head end.
_SEQ2SEQ_HEADS = ("ForConditionalGeneration", "LMHeadModel", "MTModel")
_CAUSAL_HEADS = ("ForCausalLM", "LMHeadModel")
# Language models with a head of their own that look at both sides of a token, or at tokens in another order.
_NOT_LEFT_TO_RIGHT = {"bert", "roberta", "electra", "xlnet", "xlm", "flaubert"}
_VOCABULARY_FILES = ["tokenizer.json", "vocab.txt", "*vocab*.json", "*.model", "*.spm"]


@dataclass(frozen=True)
class Pretrained:
    """A model's files on this machine, and the name they are known by."""

    folder: Path
    name: str
    revision: str | None

    def identity(self, layer: int, mode: str, max_tokens: int, *files: str) -> dict[str, str | int | bool | None]:
        """What every encoder that runs the model is known by; `files` decide its tokens besides those of the model."""
        return {
            "model": self.name,
            "revision": self.revision,
            "layer": layer,
            "mode": mode,
            "max_tokens": max_tokens,
            "fingerprint": fingerprint(self.folder, *files),
            **({FOLDER: str(self.folder.resolve())} if self.revision is None else {}),
        }


@dataclass(frozen=True)
class LoadedTextModel:
    """A model as transformers loads it, its configuration, and what it does with text."""

    model: Any
    config: Any
    kind: Kind

    @property
    def padding_id(self) -> int:
        """The id to pad with: any will do, but some models look for theirs."""
        known = getattr(self.config, "pad_token_id", None)
        return known if known is not None and known >= 0 else 0

    @property
    def context(self) -> int:
        """How many tokens the model has positions for."""
        for name, module in self.model.named_modules():
            # RoBERTa and its kin count positions from behind the padding index.
            is_positions = name.endswith("position_embeddings") and isinstance(module, nn.Embedding)
            if is_positions and module.padding_idx is not None:
                return int(module.num_embeddings - module.padding_idx - 1)
        return int(getattr(self.config, "max_position_embeddings", None) or 1 << 62)


def find_pretrained(model: str | Path | Pretrained) -> Pretrained:
    """Takes a local folder, or a hub id (`owner/name`, `owner/name@revision`) that is fetched or found in the cache.

    What was found before is given back as it is.
    """
    if isinstance(model, Pretrained):
        return model
    folder = Path(model)
    if folder.is_dir():
        found = Pretrained(folder, folder.resolve().name, None)
    elif folder.exists():
        raise InputError(f"A model must be a folder or a hub id, but {str(model)!r} is a file.")
    elif folder.is_absolute() or str(model).startswith(_PATH_BEGINNINGS):
        raise InputError(f"There is no folder {str(model)!r}.")
    else:
        found = _from_hub(str(model))
    if not (found.folder / "config.json").is_file():
        raise InputError(f"The model folder {str(found.folder)!r} has no config.json.")
    if not find_weight_files(found.folder):
        raise InputError(
            f"The model {found.name!r} has no weights in model.safetensors (looked for in {str(found.folder)!r}): "
            "pickled weights (.bin) are never loaded, save such a model again as safetensors, or name a revision on "
            "the hub that has them so (owner/name@revision)."
        )
    return found


def is_audio_model(folder: Path) -> bool:
    """Whether the model in `folder` takes sounds, by its configuration."""
    try:
        return bool(read_json(folder / "config.json").get("model_type") == AUDIO_MODEL_TYPE)
    except (OSError, ValueError, AttributeError):
        return False


def _from_hub(model: str) -> Pretrained:
    _transformers()
    from huggingface_hub import snapshot_download  # comes with transformers

    name, _, revision = model.partition("@")
    try:
        with contextlib.nullcontext() if sys.stderr.isatty() else silence_transformers():
            folder = snapshot_download(
                name, revision=revision or None, allow_patterns=_NEEDED_FILES, ignore_patterns=["*/*"]
            )
    except (OSError, ValueError) as error:
        raise InputError(
            f"There is no local folder {model!r}, and no such model could be fetched from the Hugging Face hub or "
            f"found in its cache ({_first_line(error)}); "
            "without a connection, give the path of a local folder with the model's files."
        ) from error
    return Pretrained(Path(folder), name, Path(folder).name)


def load_tokenizer(pretrained: Pretrained) -> Any:
    """The tokenizer in the model's folder."""
    transformers = _transformers()
    try:
        with silence_transformers(), warnings.catch_warnings():
            # Marian's tokenizer asks for a package that only unusual punctuation needs.
            warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                pretrained.folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # each tokenizer fails in its own way
        raise InputError(
            f"The model folder {str(pretrained.folder)!r} has no tokenizer that can be loaded ({_first_line(error)})."
        ) from error
    # Without its files a tokenizer may still load, with an empty vocabulary; only one that reads bytes needs none.
    has_files = any(next(pretrained.folder.glob(pattern), None) for pattern in _VOCABULARY_FILES)
    if not has_files and len(tokenizer) < 256:
        raise InputError(
            f"The model folder {str(pretrained.folder)!r} has no tokenizer: "
            f"one of {', '.join(_VOCABULARY_FILES)} is needed."
        )
    return tokenizer


def load_text_model(pretrained: Pretrained, dtype: torch.dtype, *, generates: bool, logprobs: bool) -> LoadedTextModel:
    """The model in the folder, with its head where that is needed: to generate, for log-probabilities of texts.

    An encoder-decoder model that shall not generate may come as its encoder alone. A classifier always has its head.
    """
    config = load_config(pretrained)
    kind = find_kind(config)
    with_head = generates or (logprobs and kind == "causal")
    may_lack = _MAY_LACK if kind != "classifier" else _COMPUTED
    model = load_model(pretrained, _auto_class(config, kind, with_head), config, dtype, may_lack)
    model.config.use_cache = False  # what generates says so itself
    return LoadedTextModel(model, config, kind)


def load_config(pretrained: Pretrained) -> Any:
    """The configuration in the model's folder."""
    with silence_transformers(), _told_as_unloadable(pretrained):
        return _transformers().AutoConfig.from_pretrained(
            pretrained.folder, local_files_only=True, trust_remote_code=False
        )


def load_model(
    pretrained: Pretrained, model_class: Any, config: Any, dtype: torch.dtype, may_lack: tuple[str, ...] = ()
) -> Any:
    """The weights in the folder as a model of that class; only tensors with `may_lack` in their name may be absent."""
    # Weights that a checkpoint lacks (a pooler that nobody reads) are drawn at random: not from the caller's generator.
    with silence_transformers(), torch.random.fork_rng(devices=[]), _told_as_unloadable(pretrained):
        model, loading = model_class.from_pretrained(
            pretrained.folder,
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **{_dtype_argument(_transformers()): dtype},
        )
    if lacking := sorted(name for name in loading["missing_keys"] if not any(part in name for part in may_lack)):
        raise InputError(
            f"The weights in {str(pretrained.folder)!r} lack {len(lacking)} tensors of the model, "
            f"among them {lacking[0]!r}."
        )
    return model


@contextlib.contextmanager
def _told_as_unloadable(pretrained: Pretrained) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # transformers and safetensors raise errors of many kinds
        raise InputError(f"The model in {str(pretrained.folder)!r} cannot be loaded ({_first_line(error)}).") from error


def find_kind(config: Any) -> Kind:
    """What a model of this configuration does with text.

    What it was saved from decides, since one configuration serves models with and without a head.
    """
    from transformers.models.auto import modeling_auto

    saved = (config.architectures or [""])[0]
    if saved.endswith("ForSequenceClassification"):
        return "classifier"
    if config.is_encoder_decoder:
        known = modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
        return "encoder-decoder" if known and saved.endswith(_SEQ2SEQ_HEADS) else "encoder"
    known = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    left_to_right = known and config.model_type not in _NOT_LEFT_TO_RIGHT
    return "causal" if left_to_right and saved.endswith(_CAUSAL_HEADS) else "encoder"


def _auto_class(config: Any, kind: Kind, with_head: bool) -> Any:
    transformers = _transformers()
    if kind == "classifier":
        return transformers.AutoModelForSequenceClassification
    if with_head and kind == "causal":
        return transformers.AutoModelForCausalLM
    if with_head and kind == "encoder-decoder":
        return transformers.AutoModelForSeq2SeqLM
    if config.is_encoder_decoder and type(config) in transformers.MODEL_FOR_TEXT_ENCODING_MAPPING:
        return transformers.AutoModelForTextEncoding  # the decoder is not even read
    return transformers.AutoModel


def _transformers() -> Any:
    return import_optional("transformers", "hf", "An encoder")


def _dtype_argument(transformers: Any) -> str:
    """The name of `from_pretrained`'s dtype argument, which changed in 4.56."""
    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    return "dtype" if (major, minor) >= (4, 56) else "torch_dtype"


@contextlib.contextmanager
def silence_transformers() -> Iterator[None]:
    """No progress bars and no log lines from transformers: what matters is checked and raised by apood."""
    transformers = _transformers()
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    """The beginning of a library's message, which may run over many lines, to quote inside a sentence."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")


_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "*vocab*.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "*.spm",
)
_WHOLE_FILE = 1 << 30
_TENSOR_SAMPLE = 1 << 16


def fingerprint(folder: Path, *also: str) -> str:
    """A digest of the files in `folder` that decide the tokens: configuration, weights, tokenizer, and those named.

    Weight files of up to 1 GiB count byte by byte. Larger ones would take longer to hash than to load, so
    of them count the header and the first 64 KiB of every tensor: any fine-tuning, quantising or merging
    of adapters shows there.
    """
    weights = find_weight_files(folder)
    others = {folder / name for name in ("config.json", *also)}.union(
        *(folder.glob(pattern) for pattern in _TOKENIZER_FILES)
    )
    digests = {path.name: sha256_of(path) for path in others}
    digests |= {path.name: _weights_digest(path) for path in weights}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def find_weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the weights of the model in `folder`; none when there are none."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        return []
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{index} must be a JSON index of weight files with a 'weight_map', and is not.") from error
    for name in sorted(names):
        if not (folder / name).is_file():
            raise InputError(f"{index} names the weight file {name!r}, which is not in {folder}.")
    return [folder / name for name in sorted(names)]


def _weights_digest(path: Path) -> str:
    if path.stat().st_size <= _WHOLE_FILE:
        return sha256_of(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in _samples(file):
            digest.update(piece)
    return digest.hexdigest()


def _samples(file: BinaryIO) -> Iterator[bytes]:
    """The header of a safetensors file, then the beginning of each tensor."""
    size = file.read(8)
    header = file.read(int.from_bytes(size, "little"))
    yield size + header
    data = file.tell()
    tensors = (entry["data_offsets"] for name, entry in json.loads(header).items() if name != "__metadata__")
    for start, stop in sorted(tensors):
        file.seek(data + start)
        yield file.read(min(stop - start, _TENSOR_SAMPLE))
