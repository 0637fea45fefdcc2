"""What detecting adds to encoding: pool and detectors, alone and right behind an encoder of PEGASUS large's size."""

import statistics
from collections.abc import Callable
from typing import Any

import torch

from apood.pooling import FrozenPool, round_queries
from apood.tokens.batch import TokenBatch
from benchmarks.detectors import AP_OOD, MAHALANOBIS, fitted
from benchmarks.inputs import BARE, Setting, bare_product, queries_of
from benchmarks.pooling import FROZEN
from benchmarks.record import Row
from benchmarks.timing import Call, measure

__all__ = ["ADDED", "added", "rows"]

ADDED = "added by"
_SECONDS = 6.0  # on a GPU: the noise of an encoder is as large as what a pool adds to one of its passes
_ENCODER = "encoder of the size of PEGASUS large, bfloat16, random weights"


def added(name: str) -> str:
    """What the row is called that says how much longer an encoder takes with this one behind it."""
    return f"{ADDED} {name}"


@torch.no_grad()
def rows(setting: Setting) -> list[Row]:
    """Pool and detectors on what the encoder gives, alone and, on a GPU, behind it; a CPU gets two sequences."""
    # a CPU does one thing after the other, and its encoder is noisier than anything that could be added
    adding = setting.gpu or setting.quick
    shape = setting.small if setting.gpu or setting.quick else setting.small._replace(n=2)
    encoder = _encoder(setting)
    ids = torch.randint(1, 900, (shape.n, shape.s), generator=torch.Generator().manual_seed(0)).to(setting.device)

    def encode() -> TokenBatch:
        return TokenBatch.from_lengths(encoder(input_ids=ids).last_hidden_state.flatten(0, 1), [shape.s] * shape.n)

    tokens, queries = encode(), round_queries(queries_of(shape, setting.device), torch.bfloat16)
    pool, detectors = FrozenPool(queries, 1.0), fitted(shape, torch.bfloat16, setting.device)
    behind: dict[str, Callable[[TokenBatch], object]] = {
        FROZEN: pool,
        AP_OOD: detectors.ap_ood.score_samples,
        MAHALANOBIS: detectors.mahalanobis.score_samples,
    }
    contenders: dict[str, Call] = {"encoder": encode, BARE: bare_product(tokens.values, queries)}
    for name, run in behind.items():
        contenders[name] = lambda run=run: run(tokens)  # type: ignore[misc]
        if adding:
            contenders[added(name)] = lambda run=run: run(encode())  # type: ignore[misc]
    found = measure(
        setting.device, contenders, seconds=_SECONDS if setting.gpu and not setting.quick else setting.seconds
    )
    encoding = found["encoder"]

    def row(what: str, value: float, limit: float | None, peak: float | None) -> Row:
        product = "" if limit is None else f"{BARE}, bfloat16"
        return Row(
            "encoder", what, str(shape), "bfloat16", "ms", value, _ENCODER, encoding.median, product, limit, peak
        )

    measured = []
    for name in behind:
        alone, limit = found[name], None if name == MAHALANOBIS else found[BARE].median
        measured.append(row(name, alone.median, limit, alone.peak_mib))
        if adding:
            # of the same round: the clock of a GPU drifts by more than this from one second to the next
            longer = [both - one for both, one in zip(found[added(name)].rounds, encoding.rounds, strict=True)]
            measured.append(row(added(name), statistics.median(longer), None, None))
    return measured


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
