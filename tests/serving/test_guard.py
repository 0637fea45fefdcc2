"""A guarded generator reads once, generates as usual for accepted inputs, and not at all for refused ones."""

import doctest
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from tiny_models import CAUSAL, ENCODER_DECODER, WORDS, made_once

from apood import KNN, MSP, Detector, Entropy, Fusion, Perplexity, TextEncoder, guard
from apood.data.record import Pair
from apood.support.errors import InputError, NotCalibratedError
from apood.tokens.batch import Ragged, TokenBatch

Models = Callable[[str], Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return made_once(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Texts of 2 to 14 words."""
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(2, 15, (120,), generator=generator).tolist()
    return [" ".join(WORDS[i] for i in torch.randint(40, (n,), generator=generator).tolist()) for n in lengths]


def load(folder: Path) -> tuple[Any, Any]:
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    return kind.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)


def fit(encoder: TextEncoder, texts: list[str], detector: Detector | None = None, accept: float = 0.5) -> Detector:
    """Return a fitted and calibrated detector; by default it accepts half of the texts."""
    detector = KNN(k=1) if detector is None else detector
    return detector.fit(encoder.encode(texts[:40])).calibrate(encoder.encode(texts[40:80]), accept)


@contextmanager
def record_shapes(module: Any) -> Iterator[list[tuple[int, int]]]:
    """Record the shapes of the token ids that a module is given."""
    shapes: list[tuple[int, int]] = []

    def note(_module: Any, inputs: Any, options: Any, _output: Any) -> None:
        ids = inputs[0] if inputs else options["input_ids"] if "input_ids" in options else options["input"]
        shapes.append(tuple(ids.shape))

    hook = module.register_forward_hook(note, with_kwargs=True)
    yield shapes
    hook.remove()


def generate(model: Any, tokenizer: Any, text: str, **options: Any) -> str:
    """Return the output of the model without a guard."""
    given = tokenizer(text, return_tensors="pt")
    ids = model.generate(input_ids=given["input_ids"], pad_token_id=0, **options)[0]
    start = 1 if model.config.is_encoder_decoder else given["input_ids"].shape[1]
    return str(tokenizer.decode(ids[start:], skip_special_tokens=True))


@pytest.mark.parametrize(
    ("family", "beams"), [*((family, 1) for family in (*CAUSAL, *ENCODER_DECODER)), ("llama", 3), ("t5", 3)]
)
def test_outputs_for_accepted_inputs_are_those_without_a_guard(
    models: Models, texts: list[str], family: str, beams: int
) -> None:
    model, tokenizer = load(models(family))
    encoder = TextEncoder(models(family))
    detector = fit(encoder, texts)
    results = guard((model, tokenizer), detector)(texts[80:100], max_new_tokens=6, num_beams=beams)
    scores = detector.score_samples(encoder.encode(texts[80:100]))
    assert [result.text for result in results] == texts[80:100]
    np.testing.assert_allclose([result.score for result in results], scores, atol=1e-4)
    np.testing.assert_allclose([result.p_value for result in results], detector.p_values(encoder.encode(texts[80:100])))
    assert [result.accepted for result in results] == (detector.decide(scores) > 0).tolist()
    assert 3 < sum(result.accepted for result in results) < 17
    for result in results:
        assert not result.truncated and result.threshold == detector.threshold_
        if result.accepted:
            assert result.output == generate(model, tokenizer, result.text, max_new_tokens=6, num_beams=beams)
            assert result.reason is None
        else:
            assert result.output is None and result.score < result.threshold
            assert result.reason and "out-of-distribution" in result.reason


@pytest.mark.parametrize("family", ["llama", "bart"])
def test_generation_without_a_cache_gives_the_same(models: Models, texts: list[str], family: str) -> None:
    guarded = guard(models(family), fit(TextEncoder(models(family)), texts))
    options = {"max_new_tokens": 5, "num_beams": 2}
    assert guarded(texts[80:90], use_cache=False, **options) == guarded(texts[80:90], **options)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_an_encoder_reads_every_text_once_and_no_decoder_sees_a_refused_one(
    models: Models, texts: list[str], family: str
) -> None:
    model, tokenizer = load(models(family))
    guarded = guard((model, tokenizer), fit(TextEncoder(models(family)), texts))
    with record_shapes(model.get_encoder()) as read, record_shapes(model.get_decoder()) as written:
        results = guarded(texts[80:90], max_new_tokens=4, min_new_tokens=4)
    accepted = sum(result.accepted for result in results)
    assert [sequences for sequences, _ in read] == [10] and 0 < accepted < 10
    assert [sequences for sequences, _ in written] == [accepted] * 4
    refused = [result.text for result in results if not result.accepted]
    with record_shapes(model.get_decoder()) as written:
        assert not any(result.accepted for result in guarded(refused, max_new_tokens=4))
    assert not written


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_a_causal_model_reads_a_prompt_once_and_adds_nothing_to_a_refused_one(
    models: Models, texts: list[str], family: str
) -> None:
    model, tokenizer = load(models(family))
    guarded = guard((model, tokenizer), fit(TextEncoder(models(family)), texts))
    seen = set()
    for text in texts[80:90]:
        prompt = len(tokenizer(text)["input_ids"])
        with record_shapes(model.get_input_embeddings()) as read:
            result = guarded(text, max_new_tokens=4, min_new_tokens=4)
        # The last token of the prompt is read again to predict the first new one; the last new token is never read.
        assert [tokens for _, tokens in read] == [prompt] + ([1] * 4 if result.accepted else [])
        seen.add(result.accepted)
    assert seen == {True, False}


def count_hooks(model: Any) -> int:
    """Return how many hooks a model has; transformers adds some of its own."""
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("layers", [-1, 1, "mix", "mix:0,2"])
@pytest.mark.parametrize("family", ["t5", "bart", "llama", "gpt2"])
def test_inputs_get_the_scores_of_their_encoder(models: Models, texts: list[str], family: str, layers: Any) -> None:
    model, tokenizer = load(models(family))
    encoder = TextEncoder(models(family), layers=layers)
    detector = fit(encoder, texts)
    guarded = guard((model, tokenizer), detector)
    hooks = count_hooks(model)
    results = guarded(texts[80:100], max_new_tokens=3)
    assert count_hooks(model) == hooks
    scores = detector.score_samples(encoder.encode(texts[80:100]))
    np.testing.assert_allclose([result.score for result in results], scores, atol=1e-4)
    assert {result.accepted for result in results} == {True, False}


def test_a_detector_from_before_layers_could_be_mixed_guards_with_its_layer(models: Models, texts: list[str]) -> None:
    encoder = TextEncoder(models("llama"), layers=-1)
    detector = fit(encoder, texts)
    detector.encoder_ = {key: value for key, value in encoder.identity.items() if key != "layers"} | {"layer": -1}
    results = guard(models("llama"), detector)(texts[80:90], max_new_tokens=2)
    scores = detector.score_samples(encoder.encode(texts[80:90]))
    np.testing.assert_allclose([result.score for result in results], scores, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "layers"), [("t5", 2), ("marian", 2), ("llama", 2), ("t5", "mix"), ("marian", "mix"), ("llama", "mix")]
)
def test_outputs_are_checked_as_their_encoder_would(
    models: Models, texts: list[str], family: str, layers: int | str
) -> None:
    model, tokenizer = load(models(family))
    detector = fit(TextEncoder(models(family), layers=1), texts)
    # The outputs of this T5 often end at once, and fitting refuses sequences without tokens.
    encoder = TextEncoder(
        models(family), mode="output", layers=layers, max_new_tokens=5, beams=2, special_tokens=family == "t5"
    )
    checker = fit(encoder, texts)
    scores = checker.score_samples(encoder.encode(texts[80:100]))
    results = guard((model, tokenizer), detector, output_detector=checker)(texts[80:100])
    unchecked = guard((model, tokenizer), detector)(texts[80:100], max_new_tokens=5, num_beams=2)
    outcomes = set()
    for result, score, other in zip(results, scores, unchecked, strict=True):
        outcomes.add(result.output_accepted)
        if not result.accepted:
            assert result.output_accepted is None and result.output_score is None
            continue
        assert result.output_score == pytest.approx(score, abs=1e-4)
        assert result.output_accepted == (score >= checker.threshold_)
        assert result.output == (other.output if result.output_accepted else None)
        assert result.output_accepted or str(result.reason).startswith("The output is out-of-distribution")
    assert outcomes == {None, True, False}


@pytest.mark.parametrize("mode", ["input", "output"])
def test_perplexity_guards_a_causal_model(models: Models, texts: list[str], mode: Any) -> None:
    folder = models("llama")
    encoder = TextEncoder(folder, mode=mode, **({"max_new_tokens": 5} if mode == "output" else {}))
    detector = fit(encoder, texts, Perplexity())
    by_input = detector if mode == "input" else fit(TextEncoder(folder), texts, accept=0.9)
    results = guard(folder, by_input, output_detector=detector if mode == "output" else None)(
        texts[80:90], max_new_tokens=5
    )
    scores = detector.score_samples(encoder.encode(texts[80:90]))
    found = [result.score if mode == "input" else result.output_score for result in results]
    compared = [(one, other) for one, other in zip(found, scores, strict=True) if one is not None]
    assert len(compared) > 3
    np.testing.assert_allclose(*zip(*compared, strict=True), atol=1e-4)


def test_a_pipeline_keeps_its_settings(models: Models, texts: list[str]) -> None:
    from transformers import pipeline

    generator = pipeline("text-generation", model=str(models("llama")), do_sample=False, max_new_tokens=7, num_beams=2)
    detector = fit(TextEncoder(models("llama")), texts)
    results = guard(generator, detector)(texts[80:95])
    accepted = [result for result in results if result.accepted]
    assert 2 < len(accepted) < 13
    for result in accepted:
        assert result.output == generator(result.text, return_full_text=False)[0]["generated_text"]
    fewer = guard(generator, detector)(accepted[0].text, max_new_tokens=2)
    assert len(fewer.output.split()) <= 2 < len(accepted[0].output.split())


def test_a_pipeline_with_a_prefix_needs_a_detector_with_this_template(models: Models, texts: list[str]) -> None:
    from transformers import pipeline

    generator = pipeline("text-generation", model=str(models("gpt_neox")), do_sample=False, max_new_tokens=4)
    generator.prefix = "word1 word2 "
    with pytest.raises(InputError, match="The pipeline adds 'word1 word2 '"):
        guard(generator, fit(TextEncoder(models("gpt_neox")), texts))
    detector = fit(TextEncoder(models("gpt_neox"), template="word1 word2 {text}"), texts, accept=0.9)
    result = guard(generator, detector)(texts[80])
    assert result.output == generate(generator.model, generator.tokenizer, f"word1 word2 {texts[80]}", max_new_tokens=4)


def test_template_and_special_tokens_are_those_of_the_detector(models: Models, texts: list[str]) -> None:
    encoder = TextEncoder(
        models("bart"), template="word3 {text} word4", special_tokens=False, max_tokens=10, on_long="beginning"
    )
    detector = fit(encoder, texts)
    guarded = guard(models("bart"), detector)
    results = guarded(texts[80:90], max_new_tokens=3)
    np.testing.assert_allclose(
        [result.score for result in results], detector.score_samples(encoder.encode(texts[80:90])), atol=1e-4
    )
    assert [result.truncated for result in results] == [len(text.split()) > 6 for text in texts[80:90]]
    assert any(result.truncated and result.accepted for result in results)
    for result in results:
        if result.accepted:
            given = f"word3 {result.text} word4"
            assert result.output == generate(*load(models("bart")), given, max_new_tokens=3)


def test_a_long_text_is_scored_by_its_beginning_and_marked_as_truncated(models: Models, texts: list[str]) -> None:
    model, tokenizer = load(models("t5"))
    tokenizer.truncation_side = "left"
    detector = fit(TextEncoder(models("t5"), max_tokens=8, on_long="beginning"), texts, accept=0.9)
    long, short = guard((model, tokenizer), detector)([" ".join(WORDS[:30]), " ".join(WORDS[:7])], max_new_tokens=4)
    assert long.truncated and not short.truncated
    assert long.score == pytest.approx(short.score, abs=1e-5)
    # The user's tokenizer is not modified.
    assert tokenizer.truncation_side == "left" and len(tokenizer(" ".join(WORDS[:30]))["input_ids"]) == 31


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_a_long_text_is_generated_from_as_a_whole(models: Models, texts: list[str], family: str) -> None:
    model, tokenizer = load(models(family))
    detector = fit(TextEncoder(models(family), max_tokens=8, on_long="beginning"), texts, accept=0.9)
    guarded = guard((model, tokenizer), detector)
    results = guarded(texts[80:100], max_new_tokens=5)
    assert [result.text for result in results] == texts[80:100]
    assert [result.truncated for result in results] == [len(tokenizer(text).input_ids) > 8 for text in texts[80:100]]
    accepted = [result for result in results if result.accepted]
    for result in accepted:
        assert result.output == generate(model, tokenizer, result.text, max_new_tokens=5)
    beginnings = [" ".join(result.text.split()[: 8 if family == "llama" else 7]) for result in accepted]
    assert any(
        result.output != generate(model, tokenizer, beginning, max_new_tokens=5)
        for result, beginning in zip(accepted, beginnings, strict=True)
    )
    reader = model.get_encoder() if family == "t5" else model.get_input_embeddings()
    for result in results:
        prompt = len(tokenizer(result.text).input_ids)
        with record_shapes(reader) as read:
            guarded(result.text, max_new_tokens=5)
        again = [prompt] if result.truncated and result.accepted else []
        assert [tokens for _, tokens in read if tokens > 1] == [min(prompt, 8), *again]


def test_an_output_is_checked_after_the_whole_text(models: Models, texts: list[str]) -> None:
    detector = fit(TextEncoder(models("llama"), max_tokens=8, on_long="beginning"), texts, accept=0.9)
    encoder = TextEncoder(models("llama"), mode="output", max_new_tokens=5)
    checker = fit(encoder, texts)
    results = guard(models("llama"), detector, output_detector=checker)(texts[80:100])
    scores = checker.score_samples(encoder.encode(texts[80:100]))
    assert {result.truncated for result in results if result.accepted} == {True, False}
    for result, score in zip(results, scores, strict=True):
        assert not result.accepted or result.output_score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "pegasus"])
def test_a_text_is_cut_at_the_last_position_of_the_model(models: Models, texts: list[str], family: str) -> None:
    model, tokenizer = load(models(family))
    detector = fit(TextEncoder(models(family), max_tokens=8, on_long="beginning"), texts, accept=0.9)
    beginning = next(
        one.text for one in guard(models(family), detector)(texts, max_new_tokens=1) if one.truncated and one.accepted
    )
    words = [*beginning.split(), *WORDS, *WORDS]
    result = guard((model, tokenizer), detector)(" ".join(words), max_new_tokens=5)
    # Both have 64 positions and one special token, and a causal model's outputs take positions, too.
    fitting = " ".join(words[: 64 - 5 - 1 if family == "gpt2" else 64 - 1])
    assert result.truncated and result.output == generate(model, tokenizer, fitting, max_new_tokens=5)
    # If new tokens could take all positions, the model reads as many tokens as the detector's limit.
    at_once = {"max_new_tokens": 64, "eos_token_id": list(range(44))}
    assert guard((model, tokenizer), detector)(" ".join(words), **at_once).output is not None


@pytest.mark.parametrize("empty", ["", " \n\t"])
def test_an_empty_text_is_refused_without_a_pass(models: Models, texts: list[str], empty: str) -> None:
    model, tokenizer = load(models("t5"))
    guarded = guard((model, tokenizer), fit(TextEncoder(models("t5")), texts))
    with record_shapes(model.get_encoder()) as read:
        result = guarded(empty)
    assert not read and not result.accepted and result.output is None
    assert result.score == -np.inf and result.p_value == 1 / 41 and result.reason == "The input is empty."
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["score"] is None
    assert guarded([]) == []
    assert [one.reason is None for one in guarded([empty, texts[0]], max_new_tokens=2)] == [False, True]


def test_other_inputs_than_texts_are_refused(models: Models, texts: list[str]) -> None:
    guarded = guard(models("t5"), fit(TextEncoder(models("t5")), texts))
    with pytest.raises(InputError, match="got int"):
        guarded(3)  # type: ignore[call-overload]
    with pytest.raises(InputError, match="got bytes"):
        guarded(b"x")  # type: ignore[call-overload]
    with pytest.raises(InputError, match="bytes at index 1"):
        guarded(["a", b"b"])  # type: ignore[list-item]
    chat = [{"role": "user", "content": "a"}]
    for given, kind in ((chat, "dict"), ([chat], "list")):
        with pytest.raises(InputError, match=f"{kind} at index 0.*apply_chat_template"):
            guarded(given)  # type: ignore[call-overload]


def test_states_that_are_not_finite_refuse_their_text_and_no_other(models: Models, texts: list[str]) -> None:
    model, tokenizer = load(models("llama"))
    detector = fit(TextEncoder(models("llama")), texts, accept=0.9)
    with torch.no_grad():
        model.get_input_embeddings().weight[tokenizer("word39")["input_ids"][0]] = torch.nan
    sound, broken = guard((model, tokenizer), detector)(["word1 word2 word3", "word1 word39"], max_new_tokens=2)
    assert sound.score > -np.inf
    assert not broken.accepted and broken.reason == "The input has states that are not finite."


def test_options_that_the_guard_must_set_itself_are_refused(models: Models, texts: list[str]) -> None:
    guarded = guard(models("llama"), fit(TextEncoder(models("llama")), texts, accept=0.9))
    accepted = next(result.text for result in guarded(texts[80:90], max_new_tokens=1) if result.accepted)
    with pytest.raises(InputError, match="input_ids cannot be an option"):
        guarded(accepted, input_ids=torch.zeros(1, 1))
    with pytest.raises(InputError, match="num_return_sequences must be 1"):
        guarded(accepted, num_return_sequences=2)


def test_a_callable_is_called_for_what_is_accepted(models: Models, texts: list[str]) -> None:
    encoder = TextEncoder(models("bert"))
    detector = fit(encoder, texts)
    calls: list[str] = []

    def answer(text: str, *, times: int) -> list[str]:
        assert not torch.is_inference_mode_enabled()
        calls.append(text)
        return [text.upper()] * times

    given = ["", *texts[80:100], " ".join(WORDS)]
    for guarded in (guard(answer, detector), guard(answer, detector, encoder=encoder)):
        calls.clear()
        results = guarded(given, times=2)
        assert calls == [result.text for result in results if result.accepted] and 3 < len(calls) < 17
        assert all(result.output == ([result.text.upper()] * 2 if result.accepted else None) for result in results)
        assert [result.windows for result in results] == [0] + [1] * 20 + [2]
        scores = detector.score_samples(encoder.encode(given[1:]))
        np.testing.assert_allclose([result.score for result in results[1:]], scores, atol=1e-5)


@pytest.mark.parametrize("mode", ["input", "reference"])
def test_the_outputs_of_a_callable_can_be_checked(models: Models, texts: list[str], mode: Any) -> None:
    detector = fit(TextEncoder(models("t5")), texts, accept=0.8)
    encoder = TextEncoder(models("t5"), mode=mode)

    def answer(text: str) -> str:
        return " ".join(reversed(text.split()))

    def items(some: list[str]) -> list[Any]:
        return [Pair(text, answer(text)) for text in some] if mode == "reference" else [answer(text) for text in some]

    checker = KNN(k=1).fit(encoder.encode(items(texts[:40]))).calibrate(encoder.encode(items(texts[40:80])), 0.5)
    results = guard(answer, detector, output_detector=checker)(texts[80:100])
    scores = checker.score_samples(encoder.encode(items(texts[80:100])))
    assert {result.output_accepted for result in results} == {None, True, False}
    for result, score in zip(results, scores, strict=True):
        if result.accepted:
            assert result.output_score == pytest.approx(score, abs=1e-5)
            assert result.output == (answer(result.text) if score >= checker.threshold_ else None)
    results = guard(len, detector, output_detector=checker)(texts[80:100])
    assert all(result.output is None and (result.error is not None) == result.accepted for result in results)
    assert any("must be a string, got int" in str(result.error) for result in results)

    def fail_sometimes(text: str) -> str:
        return answer(text) if len(text) % 2 else str(1 / 0)

    for checked in (None, checker):
        whole, partly = (
            guard(call, detector, output_detector=checked)(texts[80:100]) for call in (answer, fail_sometimes)
        )
        failed = [result for result in partly if result.error is not None]
        assert 0 < len(failed) < sum(result.accepted for result in whole)
        for other, result in zip(whole, partly, strict=True):
            if result.error is None:
                assert (result.output, result.accepted, result.reason is None) == (
                    other.output,
                    other.accepted,
                    other.reason is None,
                )
            else:
                assert isinstance(result.error, ZeroDivisionError) and result.accepted and result.output is None
                assert "ZeroDivisionError" in str(result.reason) and "ZeroDivisionError" in json.dumps(result.to_dict())
                with pytest.raises(ZeroDivisionError):
                    guard(fail_sometimes, detector)(result.text)


def test_the_encoder_of_a_callable_gives_what_both_detectors_need(models: Models, texts: list[str]) -> None:
    encoder = TextEncoder(models("bert"))
    stories = [f"{a}. {b}." for a, b in itertools.product(texts[:12], texts[12:24])]
    parts = (stories[:90], stories[90:])
    checker = Fusion([KNN(), KNN(view="summary")], sentences=True).fit(encoder.encode(parts[0]))
    checker.calibrate(encoder.encode(parts[1]), 0.5)
    detector = KNN(k=1).fit(encoder.encode(parts[0])).calibrate(encoder.encode(parts[1]), 0.9)
    results = guard(str.lower, detector, output_detector=checker)(parts[1])
    scores = checker.score_samples(encoder.encode([text.lower() for text in parts[1]]))
    checked = [(own.output_score, score) for own, score in zip(results, scores, strict=True) if own.accepted]
    assert len(checked) > 40
    for found, expected in checked:
        assert found == pytest.approx(expected, abs=1e-5)


def test_threads_share_a_guard(models: Models, texts: list[str]) -> None:
    guarded = guard(models("bart"), fit(TextEncoder(models("bart"), layers=1), texts))
    alone = [guarded(text, max_new_tokens=3) for text in texts[80:100]]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda text: guarded(text, max_new_tokens=3), texts[80:100]))
    assert together == alone


class TestRefusals:
    def test_detectors_that_cannot_decide(self, models: Models, texts: list[str]) -> None:
        tokens = TextEncoder(models("t5")).encode(texts[:40])
        with pytest.raises(NotCalibratedError, match="call calibrate"):
            guard(models("t5"), KNN(k=1).fit(tokens))
        with pytest.raises(NotFittedError):
            guard(models("t5"), KNN())
        with pytest.raises(InputError, match=r"output_detector must be a detector.*int"):
            guard(models("t5"), fit(TextEncoder(models("t5")), texts), output_detector=3)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"str: use apood\.load"):
            guard(models("t5"), "folder")  # type: ignore[arg-type]

    def test_detectors_of_another_mode(self, models: Models, texts: list[str]) -> None:
        by_input = fit(TextEncoder(models("t5")), texts)
        by_output = fit(TextEncoder(models("t5"), mode="output", max_new_tokens=3), texts)
        with pytest.raises(InputError, match="detector must be input, but it is output"):
            guard(models("t5"), by_output)
        with pytest.raises(InputError, match="output_detector must be output, but it is input"):
            guard(models("t5"), by_input, output_detector=by_input)
        with pytest.raises(InputError, match="callable's output_detector must be input or reference"):
            guard(str.upper, by_input, output_detector=by_output)

    def test_detectors_of_other_or_unknown_tokens(self, models: Models, texts: list[str]) -> None:
        encoder = TextEncoder(models("t5"))
        with pytest.raises(InputError, match=r"the model from '.*bart' is another one"):
            guard(load(models("bart")), fit(encoder, texts))
        tokens = replace(encoder.encode(texts[:40]), encoder=None)
        for generator in (models("t5"), str.upper):
            with pytest.raises(InputError, match="does not know which encoder"):
                guard(generator, KNN(k=1).fit(tokens).calibrate(tokens))
        narrow = TokenBatch(tokens.values[:, :8], tokens.offsets, {}, encoder.identity)
        with pytest.raises(InputError, match="D=16, but the detector was fitted on D=8"):
            guard(models("t5"), KNN(k=1).fit(narrow).calibrate(narrow))
        other = TextEncoder(models("bart"))
        with pytest.raises(InputError, match="The encoder gives tokens from model bart"):
            guard(str.upper, fit(encoder, texts), encoder=other)

    def test_two_detectors_of_different_templates(self, models: Models, texts: list[str]) -> None:
        by_input = fit(TextEncoder(models("t5"), template="word1 {text}"), texts)
        by_output = fit(TextEncoder(models("t5"), mode="output", max_new_tokens=3), texts)
        with pytest.raises(InputError, match=r"template 'word1 {text}', .* template None"):
            guard(models("t5"), by_input, output_detector=by_output)

    def test_a_model_from_the_hub_is_recognised_by_its_revision(self, models: Models, texts: list[str]) -> None:
        model, tokenizer = load(models("t5"))
        model.name_or_path, model.config._commit_hash = "team/model", "b" * 40
        tokens = TextEncoder(models("t5")).encode(texts[:40])
        for revision, known in (("b" * 40, True), ("a" * 40, False)):
            identity = {**(tokens.encoder or {}), "model": "team/model", "revision": revision}
            named = replace(tokens, encoder=identity)
            detector = KNN(k=1).fit(named).calibrate(named)
            if known:
                guard((model, tokenizer), detector)
            else:
                with pytest.raises(InputError, match="the model from 'team/model' is another one"):
                    guard((model, tokenizer), detector)

    def test_methods_that_need_other_channels(self, models: Models, texts: list[str]) -> None:
        entropy = fit(TextEncoder(models("t5"), samples=2, max_new_tokens=3), texts, Entropy())
        with pytest.raises(InputError, match="The method entropy needs sample_logprobs"):
            guard(models("t5"), entropy)
        identity = TextEncoder(models("t5")).identity
        logits = Ragged.from_lengths(torch.randn(40, 3), [1] * 40)
        observed = replace(TokenBatch.without_tokens(logits=logits, token_logprobs=logits), encoder=identity)
        with pytest.raises(InputError, match=r"The method msp needs logits.* encoder-decoder"):
            guard(models("t5"), MSP().fit(observed).calibrate(observed))
        logprobs = Ragged.from_lengths(-torch.rand(40), [1] * 40)
        observed = replace(TokenBatch.without_tokens(token_logprobs=logprobs), encoder=identity)
        with pytest.raises(InputError, match="The method perplexity needs token_logprobs"):
            guard(models("t5"), Perplexity().fit(observed).calibrate(observed))
        with pytest.raises(InputError, match="The method perplexity needs token_logprobs"):
            guard(str.upper, Perplexity().fit(observed).calibrate(observed))

    def test_other_generators(self, models: Models, texts: list[str]) -> None:
        detector = fit(TextEncoder(models("t5")), texts)
        with pytest.raises(InputError, match=r"A generator must be .* got int"):
            guard(3, detector)
        with pytest.raises(InputError, match=r"A model must be a causal language model .* got str"):
            guard(("t5", "tokenizer"), detector)
        bert = fit(TextEncoder(models("bert")), texts)
        with pytest.raises(InputError, match=r"A model must be a causal language model .* got Bert"):
            guard(models("bert"), bert)
        model, tokenizer = load(models("t5"))
        with pytest.raises(InputError, match="is in training mode"):
            guard((model.train(), tokenizer), detector)
        with pytest.raises(InputError, match="encoder is only for"):
            guard(models("t5"), detector, encoder=TextEncoder(models("t5")))


def test_the_example_of_guard_runs(models: Models, texts: list[str]) -> None:
    names = {"folder": models("bert"), "texts": texts}
    (example,) = doctest.DocTestFinder(recurse=False).find(guard, "guard", globs=names)
    result = doctest.DocTestRunner().run(example)
    assert result.attempted > 0 and result.failed == 0
