"""The cost of detection beside encoding: pool and detectors, alone and after an encoder as large as PEGASUS."""

import statistics
from collections.abc import Callable
from typing import Any

import torch

from apood.pooling import FrozenPool, round_queries
from apood.tokens.batch import TokenBatch
from benchmarks.detectors import AP_OOD, MAHALANOBIS, fit_detectors
from benchmarks.inputs import BARE, Setting, bare_product, make_queries
from benchmarks.pooling import FROZEN
from benchmarks.record import Row
from benchmarks.timing import Call, measure

__all__ = ["ADDED", "measure_rows", "name_added"]

ADDED = "added by"
_SECONDS = 6.0  # on a GPU: the noise of an encoder is as large as the time of a pool
_ENCODER = "encoder of the size of PEGASUS large, bfloat16, random weights"


def name_added(name: str) -> str:
    """Return the name of the row with the time that something adds to a pass of the encoder."""
    return f"{ADDED} {name}"


@torch.no_grad()
def measure_rows(setting: Setting) -> list[Row]:
    """Return the times of pool and detectors on states of the encoder, alone and, on a GPU, after it."""
    # A CPU gets two sequences and no additions: its encoder is noisier than any addition.
    adding = setting.gpu or setting.quick
    shape = setting.small if setting.gpu or setting.quick else setting.small._replace(n=2)
    encoder = _encoder(setting)
    ids = torch.randint(1, 900, (shape.n, shape.s), generator=torch.Generator().manual_seed(0)).to(setting.device)

    def encode() -> TokenBatch:
        return TokenBatch.from_lengths(encoder(input_ids=ids).last_hidden_state.flatten(0, 1), [shape.s] * shape.n)

    tokens, queries = encode(), round_queries(make_queries(shape, setting.device), torch.bfloat16)
    pool, detectors = FrozenPool(queries, 1.0), fit_detectors(shape, torch.bfloat16, setting.device)
    behind: dict[str, Callable[[TokenBatch], object]] = {
        FROZEN: pool,
        AP_OOD: detectors.ap_ood.score_samples,
        MAHALANOBIS: detectors.mahalanobis.score_samples,
    }
    contenders: dict[str, Call] = {"encoder": encode, BARE: bare_product(tokens.values, queries)}
    for name, run in behind.items():
        contenders[name] = lambda run=run: run(tokens)  # type: ignore[misc]
        if adding:
            contenders[name_added(name)] = lambda run=run: run(encode())  # type: ignore[misc]
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
            # Differences are taken within a round: the clock of a GPU drifts by more than this within a second.
            longer = [both - one for both, one in zip(found[name_added(name)].rounds, encoding.rounds, strict=True)]
            measured.append(row(name_added(name), statistics.median(longer), None, None))
    return measured


def _encoder(setting: Setting) -> Any:
    """Return an encoder, made on its device, since a CPU takes long for half a billion weights."""
    from transformers import PegasusConfig, PegasusModel

    sizes = {"encoder_layers": 16, "d_model": 1024, "encoder_ffn_dim": 4096, "encoder_attention_heads": 16}
    if setting.quick:
        sizes = {"encoder_layers": 1, "d_model": setting.small.d, "encoder_ffn_dim": 64, "encoder_attention_heads": 2}
    config = PegasusConfig(
        vocab_size=1000,  # the size does not matter for a look-up
        decoder_layers=1,
        decoder_attention_heads=sizes["encoder_attention_heads"],
        max_position_embeddings=max(512, setting.small.s),
        **sizes,
    )
    with torch.random.fork_rng(devices=["cuda"] if setting.gpu else []), torch.device(setting.device):
        torch.manual_seed(0)
        model = PegasusModel(config)
    return model.get_encoder().to(setting.device, torch.bfloat16).eval()
