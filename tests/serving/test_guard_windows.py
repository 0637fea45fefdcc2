"""A guard reads long inputs to their end: a foreign tail is refused, and nobody waits for all windows of another."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import WORDS, made_once

from apood import KNN, Detector, Perplexity, TextEncoder, guard
from apood.encoders.text.windows import MOST_WINDOWS
from apood.serving import generators
from apood.serving.generators import GuardedModel

Models = Callable[[str], Path]
FAMILIAR, FOREIGN = WORDS[:12], WORDS[28:]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return made_once(tmp_path_factory.mktemp("models"))


def make_text(words: int, seed: int, vocabulary: list[str] = FAMILIAR) -> str:
    return " ".join(random.Random(seed).choices(vocabulary, k=words))


def fit(encoder: TextEncoder, accept: float = 0.95, lengths: tuple[int, ...] = (6, 12, 25)) -> Detector:
    texts = [make_text(lengths[i % len(lengths)], i) for i in range(160)]
    return KNN(k=1).fit(encoder.encode(texts[:100])).calibrate(encoder.encode(texts[100:]), accept)


def load(folder: Path) -> tuple[Any, Any]:
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    return kind.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)


@contextmanager
def count_passes(module: Any) -> Iterator[list[tuple[int, int]]]:
    shapes: list[tuple[int, int]] = []

    def note(_module: Any, inputs: Any, options: Any, _output: Any) -> None:
        ids = inputs[0] if inputs else options["input_ids"]
        shapes.append(tuple(ids.shape))

    hook = module.register_forward_hook(note, with_kwargs=True)
    yield shapes
    hook.remove()


@pytest.mark.parametrize("kind", ["llama", "t5", "callable"])
def test_a_foreign_tail_is_refused(models: Models, kind: str) -> None:
    family = "bert" if kind == "callable" else kind
    layers = 0 if kind == "callable" else -1  # the upper layers of this random model mix up the words
    encoder = TextEncoder(models(family), max_tokens=8, layers=layers)
    generator: Any = (lambda text, **_: text.upper()) if kind == "callable" else models(family)
    detector = fit(encoder)
    guarded = guard(generator, detector)
    beginnings = [make_text(10, 900 + i) for i in range(10)]
    honest = guarded(beginnings, max_new_tokens=2)
    assert sum(result.accepted for result in honest) >= 8
    for beginning, before in zip(beginnings, honest, strict=True):
        result = guarded(f"{beginning} {make_text(16, 1, FOREIGN)}", max_new_tokens=2)
        assert not result.accepted and result.output is None and result.windows > 1 and not result.truncated
        assert result.reason is not None and f"in the worst of its {result.windows} windows is below" in result.reason
        assert result.score < before.score
    # A detector that was fitted on beginnings sees nothing but beginnings, and says so.
    blind = guard(generator, fit(TextEncoder(models(family), max_tokens=8, layers=layers, on_long="beginning")))
    results = blind([f"{beginning} {make_text(16, 1, FOREIGN)}" for beginning in beginnings], max_new_tokens=2)
    assert sum(result.accepted for result in results) >= 8 and all(result.truncated for result in results)


@pytest.mark.parametrize("family", ["llama", "t5", "bart", "gpt2"])
def test_scores_are_those_of_the_encoder(models: Models, family: str) -> None:
    encoder = TextEncoder(models(family), max_tokens=9, template="word1 {text}")
    detector = fit(encoder)
    texts = [make_text(words, words, WORDS) for words in (3, 30, 8, 17, 40, 9, 1)]
    results = guard(models(family), detector)(texts, max_new_tokens=1)
    np.testing.assert_allclose(
        [result.score for result in results], detector.score_samples(encoder.encode(texts)), atol=1e-4, rtol=1e-4
    )
    model, tokenizer = load(models(family))
    for result in results:
        if result.accepted and result.windows > 1:
            given = tokenizer(f"word1 {result.text}", return_tensors="pt")["input_ids"]
            ids = model.generate(input_ids=given, pad_token_id=0, max_new_tokens=1)[0]
            start = 1 if model.config.is_encoder_decoder else given.shape[1]
            assert result.output == tokenizer.decode(ids[start:], skip_special_tokens=True), "from the whole text"


def test_a_method_of_log_probabilities_judges_windows_too(models: Models) -> None:
    encoder = TextEncoder(models("llama"), max_tokens=8)
    texts = [make_text(12, i) for i in range(60)]
    detector = Perplexity().fit(encoder.encode(texts[:30])).calibrate(encoder.encode(texts[30:]), 0.9)
    results = guard(models("llama"), detector)(texts[:5], max_new_tokens=1)
    np.testing.assert_allclose(
        [result.score for result in results], detector.score_samples(encoder.encode(texts[:5])), rtol=1e-3
    )


@pytest.mark.parametrize("kind", ["t5", "callable"])
def test_too_long_inputs_are_refused_without_a_pass(models: Models, kind: str) -> None:
    family = "bert" if kind == "callable" else kind
    generator: Any = (lambda text, **_: text) if kind == "callable" else models(family)
    guarded = guard(generator, fit(TextEncoder(models(family), max_tokens=8)))
    short, endless = guarded([make_text(5, 0), make_text(2000, 0)], max_new_tokens=1)
    assert not endless.accepted and endless.score == -np.inf and endless.windows == 0
    assert endless.reason is not None and endless.reason.startswith("The input has 2,00")
    assert endless.reason.endswith(f"more than the limit of {MOST_WINDOWS} windows per text.")
    assert short.windows == 1 and short.score > -np.inf and endless.to_dict()["score"] is None
    strict = guard(generator, fit(TextEncoder(models(family), max_tokens=8, on_long="refuse"), lengths=(4, 5)))
    refused = strict(make_text(12, 0), max_new_tokens=1)
    assert not refused.accepted and str(refused.reason).endswith("a text of more than max_tokens=8 is refused.")


def test_a_long_output_of_a_callable_is_judged_whole(models: Models) -> None:
    encoder = TextEncoder(models("bert"), max_tokens=8)
    detector = fit(encoder)
    tails = {"good": make_text(15, 5), "bad": make_text(15, 5, FOREIGN), "endless": make_text(2000, 1)}
    for name, tail in tails.items():
        guarded = guard(lambda text, tail=tail: f"{text} {tail}", detector, output_detector=detector)
        results = [guarded(make_text(6, i)) for i in range(20)]
        shares = np.mean([result.output_accepted for result in results if result.accepted])
        assert shares > 0.7 if name == "good" else shares == 0
    reason = next(result.reason for result in results if result.accepted)
    assert reason is not None and reason.startswith("The output has 2,00")


def test_a_long_input_does_not_hold_the_model(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass is slowed down, so that a request of many windows would take seconds at once."""
    monkeypatch.setattr(generators, "choose_batch_tokens", lambda _: 200)
    model, tokenizer = load(models("t5"))
    detector = fit(TextEncoder(models("t5"), max_tokens=8), accept=0.5)
    guarded = guard((model, tokenizer), detector)
    assert isinstance(guarded._generator, GuardedModel)
    encoder, begun = model.get_encoder(), threading.Event()

    def slow_down(*_: Any) -> None:
        begun.set()
        time.sleep(0.1)

    hook = encoder.register_forward_pre_hook(slow_down)
    took: dict[str, float] = {}

    def ask(name: str, text: str) -> None:
        if name == "short":
            begun.wait()
        started = time.monotonic()
        guarded(text, max_new_tokens=1)
        took[name] = time.monotonic() - started

    given = {"long": make_text(300, 0), "short": make_text(4, 0)}
    threads = [threading.Thread(target=ask, args=item) for item in given.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hook.remove()
    assert took["long"] > 0.3 and took["short"] < took["long"] - 0.1, took


def test_an_error_of_one_call_leaves_the_model_free(models: Models) -> None:
    guarded = guard(models("llama"), fit(TextEncoder(models("llama"), max_tokens=8), accept=0.5))
    accepted = next(r.text for r in guarded([make_text(6, i) for i in range(30)], max_new_tokens=1) if r.accepted)
    with pytest.raises(Exception, match="input_ids cannot be an option"):
        guarded(accepted, input_ids=torch.zeros(1, 1))
    done = threading.Event()
    threading.Thread(target=lambda: (guarded(accepted, max_new_tokens=1), done.set()), daemon=True).start()
    assert done.wait(30), "the lock is still held"


def test_threads_get_the_results_of_their_own_texts(models: Models) -> None:
    from concurrent.futures import ThreadPoolExecutor

    guarded = guard(models("t5"), fit(TextEncoder(models("t5"), max_tokens=8)))
    texts = [make_text(5 + 7 * (i % 5), i, WORDS) for i in range(24)]
    expected = [guarded(text, max_new_tokens=1) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: guarded(text, max_new_tokens=1), texts))
    assert [one.text for one in found] == texts
    assert [(one.accepted, one.output, one.windows) for one in found] == [
        (one.accepted, one.output, one.windows) for one in expected
    ]
    np.testing.assert_allclose([one.score for one in found], [one.score for one in expected], atol=1e-5)
