"""Write the golden files: a small store, an artefact of every method, their scores, and the state of a drift alarm.

The files beside this script were written by the first version of format 1. They are not made again: the test proves
that what was saved then is read, and scored the same, by every later version. Run the script only to add files for a
new format or method: `python tests/golden/make_golden.py FOLDER` in an empty folder, then copy what is new.
"""

import json
import sys
from pathlib import Path

import torch

from apood import (
    APOOD,
    KNN,
    MSP,
    BinaryLogits,
    Coherence,
    DeepSAD,
    DeepSVDD,
    DriftAlarm,
    Energy,
    Entropy,
    Fusion,
    Length,
    Mahalanobis,
    MahalanobisKNN,
    Perplexity,
    RelativeMahalanobis,
    TokenBatch,
    TokenStore,
    TokenStoreWriter,
    Trusted,
)
from apood.tokens.batch import Ragged

DIM = 6
ENCODER = {
    "model": "golden", "revision": None, "layer": -1, "mode": "input", "max_tokens": 512, "fingerprint": "0" * 64,
}  # fmt: skip
DETECTORS = {
    "ap-ood": APOOD(steps=20),
    "ap-ood-paper": APOOD(recipe="paper", queries=2, steps=20),
    "ap-ood-euclidean": APOOD(similarity="euclidean", score="student", steps=20),
    "ap-ood-aux": APOOD(score="min", sharpness=1.5, steps=20),
    "ap-ood-reference": APOOD(recipe="reference", start="scaled", beta=0.5, queries=2, steps=20),
    "mahalanobis": Mahalanobis(),
    "mahalanobis-pooled": Mahalanobis(normalize="pooled"),
    "knn": KNN(),
    "mahalanobis-knn": MahalanobisKNN(),
    "trusted": Trusted(projections=20),
    "length": Length(),
    "deep-svdd": DeepSVDD(steps=20),
    "deep-sad": DeepSAD(steps=20),
    "relative-mahalanobis": RelativeMahalanobis(),
    "binary-logits": BinaryLogits(),
    "perplexity": Perplexity(),
    "entropy": Entropy(),
    "msp": MSP(),
    "energy": Energy(),
    "fusion": Fusion([APOOD(steps=20), KNN(), Mahalanobis(normalize="pooled")]),
    "fusion-temperature": Fusion([APOOD(steps=20, sharpness=1.5), KNN()]),  # the name of the argument when it was saved
    "coherence": Coherence(),
}
STORES = {"coherence": "sentences"}  # of methods that read what the first store lacks

CALIBRATION = [(i * 37 % 101) / 101 for i in range(101)]
STREAM = [(i * 53 % 97) / 97 for i in range(400)] + [0.001 * i for i in range(20)]


def make_batch(count: int, seed: int, shift: float = 0.0) -> TokenBatch:
    """Return sequences of 2 to 9 tokens with every channel that a method can read."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    lengths = torch.randint(2, 10, (count,), generator=generator)
    samples = torch.randint(1, 4, (count,), generator=generator)
    tokens = draw(int(lengths.sum()), DIM) + 2 + draw(count, DIM).repeat_interleave(lengths, 0) + shift
    sample_lengths = torch.randint(3, 9, (int(samples.sum()),), generator=generator).float()
    totals = -draw(len(sample_lengths)).abs() * sample_lengths
    return TokenBatch.from_lengths(tokens.half(), lengths).with_channels(
        token_logprobs=Ragged.from_lengths(-draw(int(lengths.sum())).abs(), lengths),
        sample_logprobs=Ragged.from_lengths(torch.stack([totals, sample_lengths], 1), samples),
        logits=Ragged.from_lengths(draw(count, 4), [1] * count),
    )


def add_sentences(batch: TokenBatch, seed: int, shift: float = 0.0) -> TokenBatch:
    """Return the batch with 2 to 5 sentences per sequence; the larger `shift` is, the less the first one fits."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(2, 6, (len(batch),), generator=generator)
    topics = 2 * torch.randn(len(batch), DIM, generator=generator).repeat_interleave(counts, 0)
    vectors = topics + torch.randn(len(topics), DIM, generator=generator)
    vectors[counts.cumsum(0) - counts] += shift * torch.randn(len(batch), DIM, generator=generator)
    words = torch.randint(2, 30, (len(topics), 1), generator=generator)
    return batch.with_channels(sentences=Ragged.from_lengths(torch.cat([words, vectors], 1), counts))


def main(folder: Path) -> None:
    """Write stores, artefacts and scores to `folder`."""
    some, others = make_batch(16, seed=3), make_batch(8, seed=4, shift=3.0)
    stores = {"store": (some, others), "sentences": (add_sentences(some, 3), add_sentences(others, 4, shift=3.0))}
    options = {"dim": DIM, "dtype": torch.float16, "encoder": ENCODER, "shard_bytes": 1500}
    for name, batches in stores.items():
        with TokenStoreWriter(folder / name, **options) as writer:
            for batch in batches:
                writer.append(batch)
    train, held_out = (add_sentences(make_batch(count, seed), seed) for count, seed in ((60, 0), (40, 1)))
    aux = make_batch(20, seed=2, shift=4.0)
    scores = {}
    for name, detector in DETECTORS.items():
        store = TokenStore(folder / STORES.get(name, "store"))
        with_aux = detector.aux == "required" or name.endswith("-aux")
        detector.fit(train, aux=aux if with_aux else None).calibrate(held_out, accept=0.9)
        detector.save(folder / "detectors" / name)
        scores[name] = {
            "scores": detector.score_samples(store).tolist(),
            "p_values": detector.p_values(store).tolist(),
            "decisions": detector.predict(store).tolist(),
        }
    (folder / "scores.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    alarm = DriftAlarm(CALIBRATION)
    alarm.update(STREAM[:300])
    (folder / "drift.json").write_text(json.dumps(alarm.to_json(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
