"""Pretrained models: found in a folder or on the Hugging Face hub, fingerprinted, and loaded, never from pickle."""

import contextlib
import copy
import hashlib
import itertools
import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch
from torch import nn

from apood.encoders.base.known_models import find_hub_id, find_installed, suggest_installed
from apood.encoders.base.model_files import check_model_files, find_weight_files, read_weight_header
from apood.support.checks import import_optional
from apood.support.cloud import CloudAddress, parse_place
from apood.support.errors import InputError
from apood.support.files import read_json, sha256_of
from apood.tokens.batch import FLOAT_DTYPES, dtype_name
from apood.tokens.identity import FOLDER

__all__ = [
    "AUDIO_MODEL_TYPES",
    "GENERATING",
    "Kind",
    "LoadedTextModel",
    "Pretrained",
    "check_dtype",
    "choose_dtype",
    "find_kind",
    "find_pretrained",
    "fingerprint",
    "get_model_type",
    "is_audio_model",
    "load_config",
    "load_model",
    "load_text_model",
    "load_tokenizer",
    "silence_transformers",
]

Kind = Literal["encoder", "classifier", "causal", "encoder-decoder"]
GENERATING: tuple[Kind, ...] = ("causal", "encoder-decoder")
"""The kinds of models that can generate."""
AUDIO_MODEL_TYPES = ("audio-spectrogram-transformer", "whisper")
"""The values of `model_type` of the audio models that can be encoders."""

_PATH_PREFIXES = ("./", "../", "~")  # hub ids never start like this
_NEEDED_FILES = ["*.json", "*.txt", "*.model", "*.spm", "model.safetensors", "model-*.safetensors"]
_TOKENIZER_SETTINGS = ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt"]
_VOCABULARY_FILES = ["tokenizer.json", "vocab.txt", "*vocab*.json", "*.model", "*.spm"]
# Checkpoints may lack these: sinusoidal positions are computed, the bias of logits is zero, poolers are not used.
_COMPUTED = ("embed_positions", "final_logits_bias")
_MAY_LACK = ("pooler", *_COMPUTED)
# Endings of the names of model classes with a head.
_SEQ2SEQ_HEADS = ("ForConditionalGeneration", "LMHeadModel", "MTModel")
_CAUSAL_HEADS = ("ForCausalLM", "LMHeadModel")
# Language models that attend to both sides of a token, or to tokens in another order.
_NOT_LEFT_TO_RIGHT = {
    "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "flaubert",
    "megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm", "xlm-roberta",
    "xlm-roberta-xl", "xlnet", "xmod",
}  # fmt: skip
# Implementations that are part of transformers. The default of attention is sdpa if the model supports it, else eager.
_ATTENTIONS = ("eager", "sdpa")
_EXPERTS = ("eager", "batched_mm", "grouped_mm")
_COMPUTED_VALUES = 1 << 26
_WHOLE_FILE = 1 << 30
_TENSOR_SAMPLE = 1 << 16


@dataclass(frozen=True)
class Pretrained:
    """The files of a model on this machine.

    Attributes:
        folder: the folder with the files.
        name: the folder's name, or the hub id.
        revision: the commit of a model from the hub; None for a local folder.
    """

    folder: Path
    name: str
    revision: str | None

    def identify(self, layers: str, mode: str, max_tokens: int, *files: str) -> dict[str, str | int | bool | None]:
        """Return the identity of an encoder that runs the model; `files` are further files that decide its tokens."""
        return {
            "model": self.name,
            "revision": self.revision,
            "layers": layers,
            "mode": mode,
            "max_tokens": max_tokens,
            "fingerprint": fingerprint(self.folder, *files),
            **({FOLDER: str(self.folder.resolve())} if self.revision is None else {}),
        }


def find_pretrained(model: str | Path | Pretrained, *, download: bool = True) -> Pretrained:
    """Return the model in a local folder, of a known short name, or from the hub (`owner/name`, `owner/name@revision`).

    A model from the hub is downloaded unless it is in the cache; without `download`, it must be there. A `Pretrained`
    is returned as it is.
    """
    if isinstance(model, Pretrained):
        return model
    folder = parse_place(model)
    if isinstance(folder, CloudAddress):
        raise InputError(f"The model {folder} is in a cloud store: copy it to this machine, and give its folder.")
    if folder.is_dir():
        found = Pretrained(folder, folder.resolve().name, None)
    elif folder.exists():
        raise InputError(f"A model must be a folder or a hub id, but {str(model)!r} is a file.")
    elif folder.is_absolute() or str(model).startswith(_PATH_PREFIXES):
        raise InputError(f"There is no folder {str(model)!r}.")
    elif (installed := find_installed(str(model))) is not None:
        found = Pretrained(installed, str(model), None)
    else:
        found = _find_on_hub(find_hub_id(str(model)), download=download)
    if not (found.folder / "config.json").is_file():
        raise InputError(f"The model folder {str(found.folder)!r} has no config.json.")
    if not find_weight_files(found.folder):
        raise InputError(
            f"The model {found.name!r} has no weights in model.safetensors (looked for in {str(found.folder)!r}). "
            "Pickled weights (.bin) are never loaded: save the model as safetensors, or name a revision on the hub "
            "that has them (owner/name@revision)."
        )
    check_model_files(found.folder)
    return found


def _find_on_hub(model: str, *, download: bool) -> Pretrained:
    _import_transformers()
    from huggingface_hub import snapshot_download  # comes with transformers

    name, _, revision = model.partition("@")
    try:
        with contextlib.nullcontext() if sys.stderr.isatty() else silence_transformers():
            folder = snapshot_download(
                name,
                revision=revision or None,
                allow_patterns=_NEEDED_FILES,
                ignore_patterns=["*/*"],
                local_files_only=not download,
            )
    except (OSError, ValueError) as error:
        if not download:
            raise InputError(
                f"The model {model!r} of the Hugging Face hub is not on this machine. If you trust it, name it with "
                "model= or --model: then it is downloaded."
            ) from error
        raise InputError(
            f"There is no local folder {model!r}, and no such model on the Hugging Face hub or in its cache "
            f"({_get_first_line(error)}). Without a connection, give the path of a local folder"
            f"{suggest_installed(name)}."
        ) from error
    return Pretrained(Path(folder), name, Path(folder).name)


def is_audio_model(folder: Path) -> bool:
    """Return whether the model in `folder` takes sounds, according to its configuration."""
    return get_model_type(folder) in AUDIO_MODEL_TYPES


def get_model_type(folder: Path) -> str | None:
    """Return the `model_type` in the configuration of the model in `folder`; None if it cannot be read."""
    try:
        found = read_json(folder / "config.json").get("model_type")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def fingerprint(folder: Path, *also: str) -> str:
    """Return a digest of the files in `folder` that decide the tokens, wherever the folder is.

    These are the configuration, the weights, the tokenizer, and the files named in `also`. Weight files of up to 1 GiB
    are hashed completely. Larger ones would take longer to hash than to load, so only their header and the first
    64 KiB of every tensor are hashed, which fine-tuning, quantising and merging of adapters change.
    """
    patterns = [*_TOKENIZER_SETTINGS, *_VOCABULARY_FILES]
    others = {folder / name for name in ("config.json", *also)}.union(*(folder.glob(pattern) for pattern in patterns))
    digests = {path.name: sha256_of(path) for path in others}
    digests |= {path.name: _digest_weights(path) for path in find_weight_files(folder)}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def _digest_weights(path: Path) -> str:
    if path.stat().st_size <= _WHOLE_FILE:
        return sha256_of(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in _sample_weights(file):
            digest.update(piece)
    return digest.hexdigest()


def _sample_weights(file: BinaryIO) -> Iterator[bytes]:
    """Yield the header of a safetensors file, then the beginning of each tensor."""
    header, entries = read_weight_header(file)
    yield header
    data = file.tell()
    tensors = (entry["data_offsets"] for name, entry in entries.items() if name != "__metadata__")
    for start, stop in sorted(tensors):
        file.seek(data + start)
        yield file.read(min(stop - start, _TENSOR_SAMPLE))


def load_tokenizer(pretrained: Pretrained) -> Any:
    """Return the tokenizer in the model's folder."""
    transformers = _import_transformers()
    has_files = any(next(pretrained.folder.glob(pattern), None) for pattern in _VOCABULARY_FILES)
    missing = InputError(
        f"The model folder {str(pretrained.folder)!r} has no tokenizer: "
        f"one of {', '.join(_VOCABULARY_FILES)} is needed."
    )
    try:
        with silence_transformers(), warnings.catch_warnings():
            # Marian's tokenizer asks for a package that only unusual punctuation needs.
            warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                pretrained.folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # tokenizers raise errors of many kinds
        if not has_files:
            raise missing from error
        raise InputError(
            f"The tokenizer in the model folder {str(pretrained.folder)!r} cannot be loaded ({_get_first_line(error)})."
        ) from error
    if not isinstance(tokenizer.model_max_length, int | float):
        raise InputError(
            f"The tokenizer in the model folder {str(pretrained.folder)!r} cannot be loaded (its model_max_length is "
            f"{tokenizer.model_max_length!r}, not a number)."
        )
    # Without its files a tokenizer may still load, with an empty vocabulary. Only one that reads bytes needs none.
    if not has_files and len(tokenizer) < 256:
        raise missing
    return tokenizer


@dataclass(frozen=True)
class LoadedTextModel:
    """A loaded text model.

    Attributes:
        model: the model of transformers.
        config: its configuration.
        kind: what the model does with text.
    """

    model: Any
    config: Any
    kind: Kind

    @property
    def padding_id(self) -> int:
        """The id to pad with: the model's own, because some models look for it, or else 0."""
        known = getattr(self.text_config, "pad_token_id", None)
        return known if known is not None and known >= 0 else 0

    @property
    def pads(self) -> bool:
        """Whether the model knows its padding, so that a classifier finds the last token of each row."""
        return getattr(self.text_config, "pad_token_id", None) == self.padding_id

    @property
    def text_config(self) -> Any:
        """The configuration of the part that reads texts: the whole, unless the model also takes images or sounds."""
        return self.config.get_text_config()

    @property
    def context(self) -> int:
        """The number of tokens that the model has positions for."""
        for name, module in self.model.named_modules():
            # RoBERTa and models like it count positions from the padding index on.
            is_positions = name.endswith("position_embeddings") and isinstance(module, nn.Embedding)
            if is_positions and module.padding_idx is not None:
                return int(module.num_embeddings - module.padding_idx - 1)
        known = getattr(self.text_config, "max_position_embeddings", None)
        return int(known) if known is not None and known > 0 else 1 << 62  # XLNet has -1


def load_text_model(pretrained: Pretrained, dtype: torch.dtype, *, generates: bool, logprobs: bool) -> LoadedTextModel:
    """Return the model in the folder, with its head only if generation or log-probabilities of texts need it.

    An encoder-decoder model that need not generate may be loaded as its encoder alone. A classifier keeps its head.
    """
    config = load_config(pretrained)
    kind = find_kind(config)
    with_head = generates or (logprobs and kind == "causal")
    may_lack = _MAY_LACK if kind != "classifier" else _COMPUTED
    model = load_model(pretrained, _choose_auto_class(config, kind, with_head), config, dtype, may_lack)
    model.config.use_cache = False  # generation switches it on for its own calls
    return LoadedTextModel(model, config, kind)


def load_config(pretrained: Pretrained) -> Any:
    """Return the configuration in the model's folder, without implementations that are fetched from a hub."""
    with silence_transformers(), _raise_unloadable(pretrained):
        config = _import_transformers().AutoConfig.from_pretrained(
            pretrained.folder, local_files_only=True, trust_remote_code=False
        )
        _drop_fetched_code(config)
    return config


def _drop_fetched_code(config: Any) -> None:
    """Set implementations of attention and of experts that are not part of transformers to the default.

    Others are the names of kernels, which transformers downloads and runs.
    """
    for name, own in (("_attn_implementation", _ATTENTIONS), ("_experts_implementation", _EXPERTS)):
        if getattr(config, name, None) not in (None, *own):
            setattr(config, name, None)
    for inner in vars(config).values():
        if isinstance(inner, _import_transformers().PretrainedConfig):
            _drop_fetched_code(inner)


def load_model(
    pretrained: Pretrained, model_class: Any, config: Any, dtype: torch.dtype, may_lack: tuple[str, ...] = ()
) -> Any:
    """Return the model of that class with the weights in the folder.

    Raise InputError if a tensor is missing, unless its name contains one of `may_lack`.
    """
    # Missing weights, such as those of an unused pooler, are drawn at random, but not from the caller's generator.
    with silence_transformers(), torch.random.fork_rng(devices=[]), _raise_unloadable(pretrained):
        _refuse_oversized(pretrained, model_class, config)
        model, loading = model_class.from_pretrained(
            pretrained.folder,
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **{_get_dtype_argument(): dtype},
        )
    if lacking := sorted(name for name in loading["missing_keys"] if not any(part in name for part in may_lack)):
        raise InputError(
            f"The weights in {str(pretrained.folder)!r} lack {len(lacking)} tensors of the model, "
            f"among them {lacking[0]!r}."
        )
    return model


def _refuse_oversized(pretrained: Pretrained, model_class: Any, config: Any) -> None:
    """Raise InputError if the model would be far larger than its weights. It is built without memory to find out."""
    is_auto = hasattr(model_class, "from_config")
    build = partial(model_class.from_config, trust_remote_code=False) if is_auto else model_class._from_config
    try:
        with torch.device("meta"):
            model = build(copy.deepcopy(config))
    except Exception:  # loading it raises the same error, or the model needs memory to be built
        return
    size = sum(tensor.numel() for tensor in itertools.chain(model.parameters(), model.buffers()))
    weights = sum(path.stat().st_size for path in find_weight_files(pretrained.folder))
    # Every value in a file takes at least half a byte. Small tensors may be computed instead of loaded.
    if size > 2 * weights + _COMPUTED_VALUES:
        raise InputError(
            f"The configuration in {str(pretrained.folder)!r} describes a model of {size:,} values, but its weights "
            f"have only {weights:,} bytes: they do not belong together, or one of them is damaged."
        )


@contextlib.contextmanager
def _raise_unloadable(pretrained: Pretrained) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # transformers and safetensors raise errors of many kinds
        message = f"The model in {str(pretrained.folder)!r} cannot be loaded ({_get_first_line(error)})."
        raise InputError(message) from error


def find_kind(config: Any) -> Kind:
    """Return what a model of this configuration does with text.

    The class that was saved decides, because models with and without a head have the same configuration.
    """
    from transformers.models.auto import modeling_auto

    saved = _get_saved_class(config)
    if saved.endswith("ForSequenceClassification"):
        return "classifier"
    if config.is_encoder_decoder:
        known = modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
        return "encoder-decoder" if known and saved.endswith(_SEQ2SEQ_HEADS) else "encoder"
    known = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    if known is None or config.model_type in _NOT_LEFT_TO_RIGHT:
        return "encoder"
    # Models that also take images have another name for their head.
    return "causal" if saved.endswith(_CAUSAL_HEADS) or saved == known else "encoder"


def _get_saved_class(config: Any) -> str:
    return str((config.architectures or [""])[0])


def _choose_auto_class(config: Any, kind: Kind, with_head: bool) -> Any:
    transformers = _import_transformers()
    if kind == "classifier":
        return transformers.AutoModelForSequenceClassification
    if with_head and kind == "causal":
        return transformers.AutoModelForCausalLM
    if with_head and kind == "encoder-decoder":
        return transformers.AutoModelForSeq2SeqLM
    # A decoder that is not needed is not loaded, and one that was not saved, as in sentence-t5, cannot be.
    if (config.is_encoder_decoder or _get_saved_class(config).endswith("EncoderModel")) and (
        type(config) in transformers.MODEL_FOR_TEXT_ENCODING_MAPPING
    ):
        return transformers.AutoModelForTextEncoding
    return transformers.AutoModel


def _import_transformers() -> Any:
    return import_optional("transformers", "hf", "An encoder")


def _get_dtype_argument() -> str:
    """Return the name of `from_pretrained`'s dtype argument, which changed in transformers 4.56."""
    major, minor = (int(part) for part in _import_transformers().__version__.split(".")[:2])
    return "dtype" if (major, minor) >= (4, 56) else "torch_dtype"


def check_dtype(dtype: torch.dtype) -> None:
    """Raise InputError if token batches cannot have this dtype."""
    if dtype not in FLOAT_DTYPES:
        raise InputError(f"An encoder computes in {', '.join(map(dtype_name, FLOAT_DTYPES))}, got {dtype}.")


def choose_dtype(device: torch.device) -> torch.dtype:
    """Return the default dtype of models: bfloat16 on a GPU that supports it, float32 elsewhere."""
    supported = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if supported else torch.float32


@contextlib.contextmanager
def silence_transformers() -> Iterator[None]:
    """Switch off the progress bars and log messages of transformers: apood itself checks and reports what matters."""
    logging = _import_transformers().utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _get_first_line(error: Exception) -> str:
    """Return the first line of a library's message, to quote inside a sentence."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")
