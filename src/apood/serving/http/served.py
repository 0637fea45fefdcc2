"""What is served: a calibrated detector and, for texts, its encoder. Requests become pieces that share batches."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from torch import Tensor

from apood.data.conversations import Chat
from apood.detectors.contract.artefact import CONFIG_FILE
from apood.detectors.contract.base import Detector
from apood.detectors.contract.data_checks import refuse_lacking, refuse_nonfinite
from apood.encoders.opening import AnyTextEncoder
from apood.encoders.text.encoder import PreparedTexts
from apood.encoders.text.sentences import TextSentences
from apood.encoders.text.tokenising import choose_batch_tokens
from apood.explain.explaining import explain_texts
from apood.pipeline.facts import Facts, load_detector_and_facts
from apood.pipeline.judging import Judgement
from apood.pipeline.opening import open_text_encoder_of
from apood.serving.http.batcher import Run
from apood.serving.http.lengths import LengthWatch
from apood.serving.shared.verdicts import Judged, Verdict, decide, find_owners, score_states
from apood.support.cloud import parse_place
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.documents import number_documents

__all__ = ["Scored", "Served", "Work", "load_served", "read_tokens"]

_CHANNEL = "channel."  # the names of the tensors of a body are those of a shard of a token store


class TextPiece(NamedTuple):
    """A text, or a window of a long one, as a piece of a request.

    Attributes:
        ids: its token ids.
        sentences: the token ids of each of its sentences; None if the detector does not read them.
    """

    ids: Tensor
    sentences: Sequence[Tensor] | None


class Scored(NamedTuple):
    """What a detector says about one piece.

    Attributes:
        score: its score.
        problem: what is wrong with it; None if nothing is.
        tokens: the number of tokens that were scored; an encoder may leave out special tokens.
    """

    score: float
    problem: str | None
    tokens: int


@dataclass(frozen=True)
class Work:
    """A request that is ready for the model.

    Attributes:
        run: the function that scores pieces.
        pieces: `TextPiece`s or token arrays, one piece per sequence.
        sizes: the number of tokens of each piece.
        owners: the index of the text of each piece.
        count: the number of texts.
        problems: what is wrong with the texts that have no piece, by their indices.
        cut: the indices of the texts of which only the beginning is scored.
    """

    run: Run
    pieces: Sequence[Any]
    sizes: Sequence[int]
    owners: Sequence[int]
    count: int
    problems: Mapping[int, str]
    cut: frozenset[int] = frozenset()

    def sum_by_text(self, numbers: Sequence[int]) -> list[int]:
        """Return the sum of the numbers of the pieces of each text, given one number per piece."""
        sums = np.zeros(self.count, dtype=np.int64)
        np.add.at(sums, np.array(self.owners, dtype=np.int64), np.array(numbers, dtype=np.int64))
        return [int(total) for total in sums]


class Served:
    """A calibrated detector and its encoder. One thread prepares requests, another one runs their pieces.

    Args:
        detector: the detector, calibrated.
        encoder: its encoder, of mode `input`; None to score token arrays only.
        digest: what tells this detector from another one.
        facts: what is known about its making.
        chat: which text of a conversation is judged.

    Attributes:
        lengths: counts texts of other lengths than those that set the threshold.
    """

    def __init__(
        self,
        detector: Detector,
        encoder: AnyTextEncoder | None,
        digest: str,
        facts: Facts = Facts(),  # noqa: B008 (it never changes)
        chat: Chat = "last-user",
    ) -> None:
        _ = detector.calibration  # raises an error if there is none
        if encoder is not None and encoder.mode != "input":
            raise InputError(f"The service judges inputs, but the encoder of the detector has the mode {encoder.mode}.")
        self.detector, self.encoder, self.digest, self.facts, self.chat = detector, encoder, digest, facts, chat
        self.lengths = LengthWatch(facts.calibration or facts.training)
        self.batch_tokens = choose_batch_tokens(torch.device("cpu") if encoder is None else encoder.device)

    def prepare_texts(self, texts: Sequence[str]) -> Work:
        """Return the work for texts."""
        if self.encoder is None:
            raise InputError("The detector does not know which encoder made its tokens: send token arrays, not texts.")
        problems = {index: "is empty" for index, text in enumerate(texts) if not text.strip()}
        kept = [index for index in range(len(texts)) if index not in problems]
        prepared = self.encoder.prepare([texts[index] for index in kept])
        problems |= {kept[index]: problem for index, problem in prepared.refused.items()}
        owners = [kept[index] for index in find_owners(prepared)]
        sizes = prepared.sources.lengths.clamp(min=1).tolist()
        cut = frozenset(owners[index] for index in prepared.cut)
        sentences = prepared.sentences
        parts = [None] * len(sizes) if sentences is None else sentences.list_parts()
        pieces = [*map(TextPiece, prepared.sources, parts)]
        return Work(self.run_texts, pieces, sizes, owners, len(texts), problems, cut)

    def prepare_tokens(self, batch: TokenBatch) -> Work:
        """Return the work for token arrays. Raise InputError if they cannot be scored."""
        requires = self.detector.requires
        refuse_lacking(batch, self.detector.name, requires, "body's sequences")
        if "tokens" in requires and batch.dim != self.detector.dim_:
            raise InputError(f"The tokens have D={batch.dim}, the detector was fitted on D={self.detector.dim_}.")
        refuse_nonfinite(batch, requires, 0, "the body")
        owners = number_documents(batch).tolist()
        pieces = [batch.select([index]) for index in range(len(batch))]
        return Work(self.run_tokens, pieces, batch.lengths.clamp(min=1).tolist(), owners, owners[-1] + 1, {})

    def prepare_explanation(self, text: str) -> Work:
        """Return the work to explain the score of one text. Raise InputError if it has none."""
        if not self.detector.explains:
            raise InputError(f"The score of {self.detector.name} is not made of parts that belong to single tokens.")
        work = self.prepare_texts([text])
        for problem in work.problems.values():
            raise InputError(f"The text {problem}, so there is nothing to explain.")
        return Work(self.run_explanations, [text], [sum(work.sizes)], [0], 1, {})

    def run_explanations(self, pieces: Sequence[str]) -> list[dict[str, Any]]:
        """Return why each text has its score, as JSON without the text; words have the level of their mark, 0 to 3."""
        assert self.encoder is not None
        found = []
        for explanation in explain_texts(
            self.detector, self.encoder, pieces, describe_length=self.facts.describe_length
        ):
            content = explanation.to_json()
            del content["text"]
            for word, level in zip(content["words"], explanation.grade_words(), strict=True):
                word["level"] = level
            found.append(content)
        return found

    def run_texts(self, pieces: Sequence[TextPiece]) -> list[Scored]:
        """Return the score of each piece."""
        assert self.encoder is not None
        count = len(pieces)
        ids = Ragged.from_lengths(torch.cat([piece.ids for piece in pieces]), [len(piece.ids) for piece in pieces])
        # Every window is a document of its own here: the worst one of a text is found when all are there.
        windows = torch.zeros(count, dtype=torch.int64)
        parts = [piece.sentences for piece in pieces if piece.sentences is not None]
        sentences = TextSentences.gather(parts) if parts else None
        prepared = PreparedTexts([""] * count, ids, [], None, frozenset(), windows, sentences=sentences)
        return self._score(self.encoder.run(prepared))

    def run_tokens(self, pieces: Sequence[TokenBatch]) -> list[Scored]:
        """Return the score of each piece."""
        return self._score(TokenBatch.concatenate(pieces))

    def _score(self, tokens: TokenBatch) -> list[Scored]:
        judged = score_states(self.detector, tokens)
        return [*map(Scored, judged.scores.tolist(), judged.problems, tokens.lengths.tolist())]

    def judge(self, work: Work, outcomes: Sequence[Scored]) -> list[Judgement]:
        """Return the decisions on the texts of a request from the scores of its pieces."""
        scores = np.array([own.score for own in outcomes])
        part = Judged(scores, [own.problem for own in outcomes], [1] * len(outcomes))
        judged = Judged.gather(work.count, work.owners, [part], dict(work.problems))
        verdicts = decide(self.detector, judged, "input")
        counts = work.sum_by_text([own.tokens for own in outcomes])
        return [
            Judgement(
                verdict.score, verdict.p_value, verdict.accepted, tokens, verdict.windows, index in work.cut,
                self._describe(verdict, tokens),
            )
            for index, (verdict, tokens) in enumerate(zip(verdicts, counts, strict=True))
        ]  # fmt: skip

    def _describe(self, verdict: Verdict, tokens: int) -> str | None:
        """Return why a text is refused, and whether its length is unusual; a text that is not scored has no length."""
        if verdict.score == -np.inf:
            return verdict.reason
        return " ".join(filter(None, (verdict.reason, self.facts.describe_length(tokens)))) or None

    def make_warm_up(self) -> Work:
        """Return the work of a full batch, whose results mean nothing; without an encoder, it is empty."""
        if self.encoder is None:
            return Work(self.run_tokens, [], [], [], 0, {})
        longest = words = self.encoder.max_tokens
        while True:
            work = self.prepare_texts([" ".join(["a"] * words)] * max(1, self.batch_tokens // longest))
            if work.pieces or words == 1:
                return work
            words //= 2  # with its special tokens, the text is too long for an encoder that refuses long texts


def load_served(folder: str | Path, model: str | None = None, chat: Chat | None = None) -> Served:
    """Return the detector in a folder with its encoder, if it knows one.

    Args:
        folder: the folder.
        model: the folder of the encoder, if it has moved.
        chat: which text of a conversation is judged; None for what the detector was built for, or `last-user`.
    """
    config = parse_place(folder) / CONFIG_FILE
    digest = hashlib.sha256(config.read_bytes()).hexdigest()[:12] if config.is_file() else ""
    detector, facts = load_detector_and_facts(folder)
    if None not in (chat, facts.chat) and chat != facts.chat:
        raise InputError(
            f"The detector was built from texts of the kind {facts.chat}, so it cannot judge {chat}: leave out --chat, "
            "or build another detector."
        )
    encoder = None if detector.encoder_ is None else open_text_encoder_of(detector, model=model)
    return Served(detector, encoder, digest, facts, chat or facts.chat or "last-user")


def read_tokens(body: bytes) -> TokenBatch:
    """Return the token arrays in a safetensors body. Raise InputError if there are none."""
    try:
        tensors = parse_tensors(body)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise InputError("The body is not a safetensors file, or it is cut or damaged.") from error
    prefixes = {name.removesuffix("values") for name in tensors if name.endswith("values")}
    expected = {f"{prefix}{part}" for prefix in prefixes for part in ("values", "offsets")}
    if expected != tensors.keys() or not all(prefix == "" or prefix.startswith(_CHANNEL) for prefix in prefixes):
        raise InputError(
            "The body must have the tensors values [tokens, D] and offsets [sequences + 1], and for each channel "
            "channel.NAME.values and channel.NAME.offsets."
        )
    parts = {prefix: Ragged(tensors[f"{prefix}values"], tensors[f"{prefix}offsets"]) for prefix in sorted(prefixes)}
    tokens = parts.pop("", None)
    channels = {prefix.removeprefix(_CHANNEL).rstrip("."): part for prefix, part in parts.items()}
    if tokens is None:
        batch = TokenBatch.without_tokens(**channels)
    else:
        batch = TokenBatch(tokens.values, tokens.offsets, channels)
    if not len(batch):
        raise InputError("The body has no sequences.")
    return batch
