"""The speed of the text encoder compared with a bare loop of its model, and the cost of bfloat16 in AUROC.

    python -m benchmarks.encoders --model FOLDER --texts ID.txt --ood OOD.txt

Without a model, a random one of the size of BERT base is made; without texts, random ones.
"""

import argparse
import random
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from apood.data.inputs import read_records
from apood.data.record import Record
from apood.detectors.contract.base import Detector
from apood.detectors.knn import KNN
from apood.detectors.mahalanobis import Mahalanobis
from apood.encoders.embed import embed_to_store
from apood.encoders.text.encoder import TextEncoder
from apood.evaluation.metrics import auroc
from apood.support.errors import FitWarning
from apood.tokens.batch import TokenBatch
from apood.tokens.writer import TokenStoreWriter

__all__ = ["generation", "main", "precision", "throughput"]

_BARE = "bare loop"
_SAMPLES = 4


def throughput(
    folder: Path, texts: list[str], *, device: str, max_tokens: int, logprobs: bool, rounds: int
) -> list[tuple[str, float, float]]:
    """Return for every contender its tokens per second and its speed relative to the bare loop, as medians over rounds.

    With log-probabilities, only the passes over prepared texts are timed: the rest is the same.
    """
    encoder = TextEncoder(
        folder, layers=-1, device=device, max_tokens=max_tokens, on_long="beginning", logprobs=logprobs
    )
    prepared = encoder.prepare(texts)
    tokens = len(prepared.sources.values)
    batches = _batches(encoder, prepared)
    model = _bare_model(folder, with_head=logprobs).to(device, encoder.encode(texts[:1]).dtype).eval()

    def loop(*, copied: bool) -> None:
        with torch.inference_mode():
            for ids, mask in batches:
                ids, mask = ids.to(device), mask.to(device)
                if logprobs:
                    output = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
                    logits = output.logits[:, :-1].float()
                    found = logits.gather(2, ids[:, 1:, None]).squeeze(2) - logits.logsumexp(2)
                    states = output.hidden_states[-1]
                    if copied:
                        found.cpu()
                else:
                    states = model(input_ids=ids, attention_mask=mask).last_hidden_state
                if copied:
                    states.cpu()

    def store() -> None:
        with tempfile.TemporaryDirectory() as place:
            embed_to_store(texts, encoder, Path(place) / "store")

    ready = encoder.run(prepared)

    def written() -> None:
        with (
            tempfile.TemporaryDirectory() as place,
            TokenStoreWriter(Path(place) / "store", dim=encoder.dim, dtype=torch.float16) as writer,
        ):
            writer.append(ready)

    contenders: dict[str, Callable[[], object]] = {
        _BARE: lambda: loop(copied=False),
        "bare loop, states to the CPU": lambda: loop(copied=True),
        "encoder.run (of prepared texts)": lambda: encoder.run(prepared),
    }
    if not logprobs:
        contenders |= {
            "tokenising alone": lambda: encoder.prepare(texts),
            "encoder.encode (tokenising, then running)": lambda: encoder.encode(texts),
            "writing a store alone": written,
            "embed_to_store (all of it at once)": store,
        }
    return _relative(_round_times(contenders, rounds), tokens)


def generation(
    folder: Path, texts: list[str], *, device: str, max_tokens: int, max_new_tokens: int, rounds: int
) -> list[tuple[str, float, float]]:
    """Return the same as `throughput` for greedy outputs, relative to `model.generate` on the same batches."""
    options: dict[str, Any] = {"mode": "output", "max_new_tokens": max_new_tokens, "max_tokens": max_tokens}
    encoder = TextEncoder(folder, device=device, **options)
    sampling = TextEncoder(folder, device=device, samples=_SAMPLES, **options)
    prepared = encoder.prepare(texts)
    causal = _is_causal(folder)
    batches = _batches(encoder, prepared, left=causal)
    first = encoder.encode(texts[:1])
    model = _bare_model(folder, with_head=causal, generates=True).to(device, first.dtype).eval()

    def bare() -> None:
        with torch.inference_mode():
            for ids, mask in batches:
                model.generate(
                    ids.to(device),
                    attention_mask=mask.to(device),
                    max_new_tokens=max_new_tokens,
                    do_sample=False,
                    num_beams=1,
                    pad_token_id=0,
                ).cpu()

    contenders: dict[str, Callable[[], object]] = {
        "model.generate, greedy": bare,
        "encoder.run: outputs, states, log-probabilities": lambda: encoder.run(prepared),
        f"encoder.run: the same and {_SAMPLES} samples of each": lambda: sampling.run(prepared),
    }
    return _relative(_round_times(contenders, rounds), len(encoder.run(prepared).values))


def _relative(times: Mapping[str, list[float]], tokens: int) -> list[tuple[str, float, float]]:
    bare = next(iter(times.values()))
    return [
        (name, tokens / statistics.median(own), statistics.median(b / t for b, t in zip(bare, own, strict=True)))
        for name, own in times.items()
    ]


def _batches(encoder: TextEncoder, prepared: Any, *, left: bool = False) -> list[tuple[Tensor, Tensor]]:
    """Return the encoder's own batches, padded."""
    found = []
    for chosen in encoder.batches(prepared):
        rows = [prepared.sources.sequence(int(index)).long() for index in chosen]
        side = "left" if left else "right"
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side=side)
        mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side=side)
        found.append((ids, mask))
    return found


def _bare_model(folder: Path, *, with_head: bool, generates: bool = False) -> Any:
    import transformers

    kind = transformers.AutoModel
    if with_head or generates:
        kind = transformers.AutoModelForCausalLM if with_head else transformers.AutoModelForSeq2SeqLM
    model = kind.from_pretrained(folder, local_files_only=True)
    return model.get_encoder() if model.config.is_encoder_decoder and not generates else model


def _is_causal(folder: Path) -> bool:
    from transformers import AutoConfig

    saved = (AutoConfig.from_pretrained(folder, local_files_only=True).architectures or [""])[0]
    return bool(saved.endswith(("ForCausalLM", "LMHeadModel")))


def _generates(folder: Path) -> bool:
    from transformers import AutoConfig

    return _is_causal(folder) or bool(AutoConfig.from_pretrained(folder, local_files_only=True).is_encoder_decoder)


def _round_times(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every round, without a warm-up round; every other round runs the contenders in reverse."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            started = time.perf_counter()
            contenders[name]()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number:
                times[name].append(time.perf_counter() - started)
    return times


def precision(
    folder: Path, texts: list[str], others: list[str], *, device: str, max_tokens: int
) -> list[tuple[str, float, float]]:
    """Return the relative error of states in bfloat16 and the AUROC of detectors on float32 and bfloat16 states."""
    half = len(texts) // 2
    sets: list[list[TokenBatch]] = []
    for dtype in (torch.float32, torch.bfloat16):
        encoder = TextEncoder(
            folder, device=device, max_tokens=max_tokens, on_long="beginning", logprobs=False, dtype=dtype
        )
        sets.append([_float(encoder.encode(part)) for part in (texts[:half], texts[half:], others)])
    exact, rough = (batches[1].values for batches in sets)
    rows = [("relative error of states", 0.0, float((rough - exact).norm() / exact.norm()))]
    detectors: list[Callable[[], Detector]] = [Mahalanobis, KNN]
    for make in detectors:
        found = []
        for train, test, ood in sets:
            detector = make().fit(train)
            found.append(100 * auroc(detector.score_samples(test), detector.score_samples(ood)).value)
        rows.append((f"AUROC of {make().name}, %", found[0], found[1]))
    return rows


def _float(batch: TokenBatch) -> TokenBatch:
    return TokenBatch(batch.values.float(), batch.offsets, {}, batch.encoder)


@contextmanager
def _model_folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    from transformers import BertConfig, BertModel

    with tempfile.TemporaryDirectory() as place:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            BertModel(BertConfig(vocab_size=8000)).save_pretrained(place)
        _tokenizer(_random_texts(2000, seed=0)).save_pretrained(place)
        yield Path(place)


def _tokenizer(texts: list[str]) -> Any:
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizerFast

    trained = BertWordPieceTokenizer()
    trained.train_from_iterator(texts, vocab_size=8000)
    return BertTokenizerFast(tokenizer_object=trained._tokenizer)


def _read_texts(name: str, field: str) -> Iterator[str]:
    return (record.item for record in read_records([name], field=field) if isinstance(record, Record))


def _random_texts(count: int, seed: int) -> list[str]:
    """Return texts of 20 to 300 words of random letters."""
    generator = random.Random(seed)
    words = ["".join(generator.choices("abcdefghijklmnopqrst", k=generator.randint(2, 9))) for _ in range(5000)]
    return [" ".join(generator.choices(words, k=generator.randint(20, 300))) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encoders", description=__doc__)
    parser.add_argument("--model", type=Path, help="a model folder; a random one of the size of BERT base by default")
    parser.add_argument("--texts", help="in-distribution texts, as `apood embed` takes them; random ones by default")
    parser.add_argument("--ood", help="other texts, for the precision")
    parser.add_argument("--field", default="text")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--count", type=int, help="how many texts", default=1000 if torch.cuda.is_available() else 400)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--generate", type=int, default=256, help="how many of them to generate from")
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    warnings.simplefilter("ignore", FitWarning)  # only the difference between two precisions matters
    read = [
        _read_texts(name, given.field) if name else iter(_random_texts(given.count, seed))
        for seed, name in enumerate((given.texts, given.ood))
    ]
    texts, others = ([text for text, _ in zip(found, range(given.count), strict=False)] for found in read)
    options = {"device": given.device, "max_tokens": given.max_tokens}
    with _model_folder(given.model) as folder:
        for logprobs in (False, True) if _is_causal(folder) else (False,):
            title = f"{given.device}, {len(texts):,} texts{', with token log-probabilities' if logprobs else ''}"
            _print_rates(title, throughput(folder, texts, logprobs=logprobs, rounds=given.rounds, **options))
        if _generates(folder):
            some = texts[: given.generate]
            rates = generation(
                folder, some, max_new_tokens=given.max_new_tokens, rounds=min(given.rounds, 2), **options
            )
            _print_rates(f"{given.device}, outputs of {len(some):,} texts", rates)
        print(f"\npeak memory: {_peak_memory()}")
        print("\n| what | float32 | bfloat16 |\n| --- | ---: | ---: |")
        for what, exact, rough in precision(folder, texts, others, **options):
            print(f"| {what} | {exact:.4g} | {rough:.4g} |")


def _print_rates(title: str, rates: list[tuple[str, float, float]]) -> None:
    print(f"\n{title}\n\n| what | tokens/s | relative to the first |\n| --- | ---: | ---: |")
    for name, speed, ratio in rates:
        print(f"| {name} | {speed:,.0f} | {ratio:.2f} |")


def _peak_memory() -> str:
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    device = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of the GPU" if torch.cuda.is_available() else ""
    return f"{process:.1f} GiB of the process{device}"


if __name__ == "__main__":
    main()
