"""The channel `summary` of sounds: the mean of the layers that tokens are not made of, from the same pass."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_audio import make_audio_model, make_whisper, noise, tone

from apood.data.record import Record, Sound
from apood.detectors.fusion import Fusion
from apood.detectors.knn import KNN
from apood.detectors.recommended import list_untrained_members
from apood.encoders.audio.encoder import AudioEncoder
from apood.encoders.embed import embed_to_store
from apood.encoders.opening import reopen_encoder
from apood.pipeline.opening import open_encoder_of
from apood.support.errors import InputError
from apood.tokens.identity import same_encoder
from apood.tokens.store import TokenStore

RATE = 16_000


@pytest.fixture(scope="module", params=[make_audio_model, make_whisper])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = request.param(tmp_path_factory.mktemp("audio") / request.param.__name__)
    return made


@pytest.fixture(scope="module")
def sounds() -> list[Sound]:
    """Return sounds of several lengths, in more batches than one."""
    lengths = [RATE // 2, RATE, 4000, 9000, RATE + 500]
    return [Sound((tone, noise)[i % 2](1.5, i, RATE)[: lengths[i % 5]], RATE) for i in range(210)]


def encode(folder: Path, sounds: list[Sound], **options: Any) -> Any:
    return AudioEncoder(folder, device="cpu", **options).encode(sounds)


@pytest.mark.parametrize(
    ("layers", "other"), [("auto", -1), ("mix", -1), ("mix:0,2", -1), (-1, "mix"), (1, "mix"), (3, "mix")]
)
def test_a_summary_is_the_mean_of_the_other_view(folder: Path, sounds: list[Sound], layers: Any, other: Any) -> None:
    found = encode(folder, sounds[:7], layers=layers).channels["summary"]
    assert found.values.dtype == torch.float32 and found.lengths.tolist() == [1] * 7
    for row, states in zip(found, encode(folder, sounds[:7], layers=other), strict=True):
        torch.testing.assert_close(row, states.mean(0, keepdim=True), atol=1e-5, rtol=1e-5)


def test_special_tokens_count_if_they_are_kept(tmp_path: Path, sounds: list[Sound]) -> None:
    folder = make_audio_model(tmp_path)
    found = encode(folder, sounds[:3], special_tokens=True).channels["summary"]
    for row, states in zip(found, encode(folder, sounds[:3], special_tokens=True, layers=-1), strict=True):
        torch.testing.assert_close(row[0], states.mean(0), atol=1e-5, rtol=1e-5)


def test_a_summary_does_not_depend_on_neighbours(folder: Path, sounds: list[Sound]) -> None:
    together = encode(folder, sounds).channels["summary"]
    turned = encode(folder, sounds[::-1]).channels["summary"].select(slice(None, None, -1))
    torch.testing.assert_close(turned.values, together.values, atol=1e-5, rtol=1e-5)
    for index in (0, 4, 209):
        alone = encode(folder, [sounds[index]]).channels["summary"].values
        torch.testing.assert_close(together.sequence(index), alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layers", ["mix", -1])
def test_no_tokens_change_and_no_pass_is_added(folder: Path, sounds: list[Sound], layers: Any) -> None:
    with_summary, without = (
        AudioEncoder(folder, layers=layers, summary=summary, device="cpu") for summary in (True, False)
    )
    assert dict(with_summary.identity) == dict(without.identity)
    passes: list[int] = []
    for encoder in (with_summary, without):
        encoder._model.module.register_forward_pre_hook(lambda *_: passes.append(1))
    first, count = with_summary.encode(sounds), len(passes)
    second = without.encode(sounds)
    assert count > 0 and len(passes) == 2 * count
    assert torch.equal(first.values, second.values)
    assert first.channels.keys() - second.channels.keys() == {"summary"}
    assert len(with_summary.encode([]).channels["summary"]) == 0


def test_summaries_are_float32_and_can_be_trained_on(folder: Path, sounds: list[Sound]) -> None:
    coarse = encode(folder, sounds[:4], dtype=torch.bfloat16)
    summary, exact = coarse.channels["summary"], encode(folder, sounds[:4]).channels["summary"]
    assert coarse.dtype == torch.bfloat16 and summary.values.dtype == torch.float32
    assert (summary.values - exact.values).abs().mean() < 0.05
    assert summary.values.requires_grad_().requires_grad


def embed(folder: Path, sounds: list[Sound], store: Path, *, summary: bool) -> TokenStore:
    """Return a store of sounds, without `summary` like one from before sounds had it."""
    encoder = AudioEncoder(folder, summary=summary, device="cpu")
    embed_to_store([Record(sound, str(number)) for number, sound in enumerate(sounds)], encoder, store)
    return TokenStore(store)


def test_a_store_keeps_summaries_and_an_encoder_is_reopened_with_them(
    folder: Path, sounds: list[Sound], tmp_path: Path
) -> None:
    store = embed(folder, sounds[:10], tmp_path / "store", summary=True)
    expected = encode(folder, sounds[:10]).channels["summary"].values
    torch.testing.assert_close(store.select(slice(None)).channels["summary"].values, expected)
    assert store.encoder is not None
    for channels in (set[str](), {"summary"}):
        again = reopen_encoder(store.encoder, folder, channels=channels, device="cpu")
        assert same_encoder(store.encoder, again.identity)
        assert again.encode(sounds[:2]).channels.keys() & {"summary"} == channels


def test_an_interrupted_store_without_summary_is_resumed_without_it(
    folder: Path, sounds: list[Sound], tmp_path: Path
) -> None:
    records = [Record(sound, str(number)) for number, sound in enumerate(sounds[:6])]
    embed(folder, sounds[:4], tmp_path / "store", summary=False)
    counts = embed_to_store(records, AudioEncoder(folder, device="cpu"), tmp_path / "store", resume=True)
    store = TokenStore(tmp_path / "store")
    assert (counts.skipped, counts.records, len(store)) == (4, 2, 6) and "summary" not in store.channels


@pytest.mark.filterwarnings("ignore:.* near copies")  # to a random model, all tones are alike
def test_stores_and_detectors_of_sounds_without_summary_stay_usable(
    folder: Path, sounds: list[Sound], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the member that is trained would take seconds, and does not read this channel
    monkeypatch.setattr("apood.detectors.recommended.APOOD", lambda **_: list_untrained_members()[0])
    old, new = (embed(folder, sounds[:60], tmp_path / str(summary), summary=summary) for summary in (False, True))
    before, after = (Fusion(device="cpu").fit(store) for store in (old, new))
    assert (before.requires, after.requires) == ({"tokens"}, {"tokens", "summary"})
    assert [member.view for member in after.members_ if type(member) is KNN] == ["tokens", "summary"]

    np.testing.assert_array_equal(before.score_samples(new), before.score_samples(old))
    for detector, store in ((before, old), (after, new)):
        encoded = open_encoder_of(detector, folder).encode(sounds[:60])
        np.testing.assert_allclose(detector.score_samples(encoded), detector.score_samples(store), atol=0.05)
    with pytest.raises(InputError, match="fusion needs summary, which the data to score lack; they have tokens"):
        after.score_samples(old)
