"""What detecting adds to encoding: the pool beside the encoder of a transformer of the size of PEGASUS large."""

from typing import Any

import torch

from apood.pooling import FrozenPool
from benchmarks.detectors import AP_OOD, MAHALANOBIS, fitted
from benchmarks.inputs import BARE, Setting, bare_product, queries_of, tokens_of
from benchmarks.pooling import FROZEN
from benchmarks.record import Row
from benchmarks.timing import measure

__all__ = ["rows"]

_ENCODER = "encoder of the size of PEGASUS large, bfloat16, random weights"


@torch.no_grad()
def rows(setting: Setting) -> list[Row]:
    """Pool and detectors on what the encoder gives, each beside its forward pass; a CPU gets two sequences."""
    shape = setting.small if setting.gpu or setting.quick else setting.small._replace(n=2)
    encoder = _encoder(setting)
    ids = torch.randint(1, 900, (shape.n, shape.s), generator=torch.Generator().manual_seed(0)).to(setting.device)
    tokens, queries = tokens_of(shape, torch.bfloat16, setting.device), queries_of(shape, setting.device)
    pool, detectors = FrozenPool(queries, 1.0), fitted(shape, torch.bfloat16, setting.device)
    found = measure(
        setting.device,
        {
            "encoder": lambda: encoder(input_ids=ids).last_hidden_state,
            BARE: bare_product(tokens.values, queries),
            FROZEN: lambda: pool(tokens),
            AP_OOD: lambda: detectors.ap_ood.score_samples(tokens),
            MAHALANOBIS: lambda: detectors.mahalanobis.score_samples(tokens),
        },
        seconds=setting.seconds,
    )
    bare = found[BARE].median
    return [
        Row(
            "encoder", name, str(shape), "bfloat16", "ms", found[name].median, _ENCODER, found["encoder"].median,
            limit, limit_value, found[name].peak_mib,
        )
        for name, limit, limit_value in (
            (FROZEN, f"{BARE}, bfloat16", bare), (AP_OOD, f"{BARE}, bfloat16", bare), (MAHALANOBIS, "", None),
        )
    ]  # fmt: skip


def _encoder(setting: Setting) -> Any:
    """Built where it runs: to fill half a billion weights on a CPU takes long."""
    from transformers import PegasusConfig, PegasusModel

    sizes = {"encoder_layers": 16, "d_model": 1024, "encoder_ffn_dim": 4096, "encoder_attention_heads": 16}
    if setting.quick:
        sizes = {"encoder_layers": 1, "d_model": setting.small.d, "encoder_ffn_dim": 64, "encoder_attention_heads": 2}
    config = PegasusConfig(
        vocab_size=1000,  # embedding is a look-up, whatever its size
        decoder_layers=1,
        decoder_attention_heads=sizes["encoder_attention_heads"],
        max_position_embeddings=max(512, setting.small.s),
        **sizes,
    )
    with torch.random.fork_rng(devices=["cuda"] if setting.gpu else []), torch.device(setting.device):
        torch.manual_seed(0)
        model = PegasusModel(config)
    return model.get_encoder().to(setting.device, torch.bfloat16).eval()
