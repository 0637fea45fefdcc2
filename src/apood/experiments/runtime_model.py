"""The transformer that the runtime experiment compares detectors with: from a folder, or PEGASUS with random weights.

Times do not depend on the weights.
"""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from apood.encoders.base.pretrained import (
    GENERATING,
    LoadedTextModel,
    choose_dtype,
    find_kind,
    find_pretrained,
    load_config,
    load_text_model,
    silence_transformers,
)
from apood.encoders.text.model import TextModel
from apood.encoders.text.tokenising import Padded
from apood.support.checks import import_optional
from apood.tokens.batch import dtype_name

__all__ = ["RuntimeModel", "load_model", "make_random_model"]

_LARGE = {"layers": 16, "width": 1024, "feed_forward": 4096, "attention_heads": 16, "vocabulary": 96_103}
_SMALL = {"layers": 4, "width": 256, "feed_forward": 1024, "attention_heads": 4, "vocabulary": 8000}
_TINY = {"layers": 1, "width": 16, "feed_forward": 32, "attention_heads": 2, "vocabulary": 100}
_POSITIONS = 1024
_MOST_CONTEXT = 1 << 20


@dataclass(frozen=True)
class RuntimeModel:
    """A model on its device."""

    name: str
    loaded: LoadedTextModel
    device: torch.device
    dtype: torch.dtype

    @property
    def generates(self) -> bool:
        """Whether it can generate."""
        return self.loaded.kind in GENERATING

    @property
    def context(self) -> int:
        """The largest number of input tokens."""
        return min(self.loaded.context, _MOST_CONTEXT)

    @property
    def dim(self) -> int:
        """The dimension D of its tokens."""
        with torch.inference_mode():
            return self.encode(self.random_ids(1, 1, torch.Generator().manual_seed(0))).shape[2]

    @property
    def facts(self) -> dict[str, Any]:
        """The facts for the results."""
        return {
            "name": self.name,
            "kind": self.loaded.kind,
            "dtype": dtype_name(self.dtype),
            "parameters": sum(parameter.numel() for parameter in self.loaded.model.parameters()),
        }

    def random_ids(self, batch: int, context: int, generator: torch.Generator) -> Tensor:
        """Return token ids `[batch, context]`, drawn on the CPU so that a seed gives the same ids on every device."""
        vocabulary = int(self.loaded.config.get_text_config().vocab_size)
        return torch.randint(vocabulary // 10, vocabulary, (batch, context), generator=generator).to(self.device)

    def encode(self, ids: Tensor) -> Tensor:
        """Return the states `[batch, context, D]` of the encoder, or of a causal model without its head."""
        lengths = torch.full((len(ids),), ids.shape[1])
        return TextModel(self.loaded.model, self.loaded.kind).read(Padded(ids, None, lengths)).states

    def generate(self, ids: Tensor, new_tokens: int, beams: int) -> Tensor:
        """Return outputs of exactly `new_tokens` tokens."""
        model = self.loaded.model
        settings = copy.deepcopy(model.generation_config)
        unused = dict.fromkeys(("max_length", "min_length", "temperature", "top_k", "top_p", "forced_eos_token_id"))
        lengths = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
        fill = {"pad_token_id": self.loaded.padding_id, "use_cache": True}
        settings.update(**unused, **lengths, **fill, do_sample=False, num_beams=beams)
        with silence_transformers():
            output: Tensor = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings
            )
        return output


def load_model(folder: Path, device: torch.device) -> RuntimeModel:
    """Return a text model from a local folder."""
    pretrained = find_pretrained(folder)
    dtype = choose_dtype(device)
    generates = find_kind(load_config(pretrained)) in GENERATING
    loaded = load_text_model(pretrained, dtype, generates=generates, logprobs=False)
    loaded.model.to(device).eval()
    return RuntimeModel(pretrained.name, loaded, device, dtype)


def make_random_model(device: torch.device, seed: int, *, quick: bool) -> RuntimeModel:
    """Return PEGASUS with random weights: as large as PEGASUS large on a GPU, small on a CPU."""
    import_optional("transformers", "hf", "The runtime experiment")
    from transformers import PegasusConfig, PegasusForConditionalGeneration

    gpu = device.type == "cuda"
    size = _TINY if quick else _LARGE if gpu else _SMALL
    config = PegasusConfig(
        vocab_size=size["vocabulary"],
        d_model=size["width"],
        max_position_embeddings=_POSITIONS,
        **{f"{part}_layers": size["layers"] for part in ("encoder", "decoder")},
        **{f"{part}_ffn_dim": size["feed_forward"] for part in ("encoder", "decoder")},
        **{f"{part}_attention_heads": size["attention_heads"] for part in ("encoder", "decoder")},
    )
    # The weights are drawn on the device, since a CPU takes long for half a billion numbers.
    with silence_transformers(), torch.random.fork_rng(devices=[device] if gpu else []), device:
        torch.manual_seed(seed)
        model = PegasusForConditionalGeneration(config)
    dtype = choose_dtype(device)
    name = "PEGASUS large" if size is _LARGE else f"PEGASUS made small, D = {size['width']}"
    loaded = LoadedTextModel(model.to(device, dtype).eval(), config, "encoder-decoder")
    return RuntimeModel(f"{name}, random weights", loaded, device, dtype)
