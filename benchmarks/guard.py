"""The time that a guard saves on a stream with OOD texts, and the cost of its detector.

    python -m benchmarks.guard --model FOLDER --id FILE --ood FILE ...

Without a model, a random T5 is made; without texts, random ones. Texts come one at a time, as to a server. Every
contender answers a text before the next one comes, so that other load on the machine affects all of them alike.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from apood.data.inputs import read_records
from apood.data.record import Record
from apood.detectors.contract.artefact import load_detector
from apood.detectors.contract.base import Detector
from apood.detectors.contract.registry import detector_class
from apood.encoders.opening import reopen_encoder
from apood.encoders.text.encoder import TextEncoder
from apood.serving.guard import guard
from apood.support.device import resolve_device

__all__ = ["main", "measure"]

_KINDS = ("ID", "OOD")
_WARM_UP = 3


def measure(
    folder: Path, detector: Detector, stream: list[tuple[str, str]], new_tokens: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds of every contender on a stream of (kind, text), and the share of each kind that is refused."""
    encoder = reopen_encoder(detector.encoder_ or {}, folder, channels=detector.requires)
    assert isinstance(encoder, TextEncoder)
    model, tokenizer = _loaded(folder)
    options = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False}

    def generate(text: str) -> str:
        given = tokenizer(text, truncation=True, max_length=encoder.max_tokens, return_tensors="pt").to(model.device)
        ids = model.generate(**given, **options)[0]
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    once, twice = guard((model, tokenizer), detector), guard(generate, detector, encoder=encoder)
    contenders: dict[str, Callable[[str], object]] = {
        "no guard": generate,
        "guard, same pass": lambda text: once(text, **options),
        "guard, pass of its own": twice,
        "reading and scoring alone": lambda text: detector.score_samples(encoder.encode([text])),
    }
    times = _times(contenders, [text for _, text in stream])
    refused: dict[str, list[bool]] = {kind: [] for kind in _KINDS}
    for kind, text in stream:
        score = detector.score_samples(encoder.encode([text]))
        refused[kind].append(bool(detector.decide(score)[0] < 0))
    return times, {kind: sum(found) / max(len(found), 1) for kind, found in refused.items()}


def _times(contenders: Mapping[str, Callable[[str], object]], texts: list[str]) -> dict[str, float]:
    times = dict.fromkeys(contenders, 0.0)
    for number, text in enumerate([*texts[:_WARM_UP], *texts]):
        # The order alternates, so that no contender always finds the text in the processor's caches.
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            started = time.perf_counter()
            contenders[name](text)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number >= _WARM_UP:
                times[name] += time.perf_counter() - started
    return times


def _loaded(folder: Path) -> tuple[Any, Any]:
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    device = resolve_device()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = kind.from_pretrained(folder, local_files_only=True).to(device, dtype)
    if model.generation_config.pad_token_id is None:
        model.generation_config.pad_token_id = 0
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _fitted(method: str, folder: Path, texts: list[str], max_tokens: int) -> Detector:
    """Return a detector that is fitted on half of the texts and calibrated on the other half."""
    encoder, half = TextEncoder(folder, max_tokens=max_tokens, on_long="beginning"), len(texts) // 2
    return detector_class(method)().fit(encoder.encode(texts[:half])).calibrate(encoder.encode(texts[half:]))


@contextmanager
def _model_folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[END]", *_words(0), *_words(1)])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    config = T5Config(
        vocab_size=8000, d_model=384, d_ff=1536, num_layers=6, num_heads=6, decoder_start_token_id=0, eos_token_id=2
    )
    with tempfile.TemporaryDirectory() as place:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            T5ForConditionalGeneration(config).save_pretrained(place)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(place)
        yield Path(place)


def _words(kind: int) -> list[str]:
    return [f"{_KINDS[kind].lower()}{number}" for number in range(50)]


def _random_texts(kind: int) -> Iterator[str]:
    """Yield texts of 40 to 200 words from the vocabulary of a kind."""
    dice = random.Random(kind)
    while True:
        yield " ".join(dice.choices(_words(kind), k=dice.randint(40, 200)))


def _texts(files: list[str] | None, kind: int, count: int) -> list[str]:
    """Return `count` texts, from several files in turn."""
    if not files:
        return list(islice(_random_texts(kind), count))
    read = [(record.item for record in read_records([file]) if isinstance(record, Record)) for file in files]
    return list(islice(chain.from_iterable(zip(*read, strict=False)), count))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("--model", type=Path, help="a folder of a model that generates; a random T5 by default")
    parser.add_argument("--detector", type=Path, help="fitted on that model; one is fitted on ID texts by default")
    parser.add_argument("--method", default="knn", help="of a detector that is fitted here")
    parser.add_argument("--id", nargs="+", metavar="FILE", help="in-distribution texts; random ones by default")
    parser.add_argument("--ood", nargs="+", metavar="FILE", help="other texts; random ones by default")
    parser.add_argument("--count", type=int, default=60, help="texts in the stream")
    parser.add_argument("--share", type=float, default=0.3, help="of OOD texts in the stream")
    parser.add_argument("--fit", type=int, default=400, help="ID texts to fit and calibrate with")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=32)
    given = parser.parse_args()
    outside = round(given.share * given.count)
    known = _texts(given.id, 0, given.fit + given.count - outside)
    stream = [
        *(("ID", text) for text in known[given.fit :]),
        *(("OOD", text) for text in _texts(given.ood, 1, outside)),
    ]
    random.Random(0).shuffle(stream)
    with _model_folder(given.model) as folder:
        if given.detector:
            detector = load_detector(given.detector)
        else:
            detector = _fitted(given.method, folder, known[: given.fit], given.max_tokens)
        times, refused = measure(folder, detector, stream, given.new_tokens)
    print(f"\n{len(stream)} texts, {outside / len(stream):.0%} of them OOD, {given.new_tokens} new tokens each,")
    print(", ".join(f"{share:.0%} of {kind} refused" for kind, share in refused.items()))
    print("\n| | ms a text | relative to no guard |\n| --- | ---: | ---: |")
    for name, seconds in times.items():
        print(f"| {name} | {1e3 * seconds / len(stream):.1f} | {seconds / times['no guard']:.2f} |")


if __name__ == "__main__":
    main()
