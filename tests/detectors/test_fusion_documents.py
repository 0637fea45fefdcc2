"""A fusion of documents: what it holds out, what neighbours leave out, and the scores of members per document."""

import re
import warnings

import numpy as np
import pytest
import torch

from apood import APOOD, KNN, Fusion, Mahalanobis, MahalanobisKNN, TokenBatch
from apood.detectors.contract.base import Detector
from apood.detectors.contract.weighing import score_unlearnt
from apood.support.errors import FitWarning, InputError
from apood.tokens.batch import Ragged
from apood.tokens.documents import WINDOW, count_documents, number_documents

DIM = 4


def make_documents(counts: list[int], seed: int = 0, within: float = 1.0) -> TokenBatch:
    """Return documents of these numbers of windows; `within` is the spread of the tokens of a document."""
    rng = np.random.default_rng(seed)
    rows, windows = [], []
    for count in counts:
        centre = rng.normal(size=DIM)
        rows += [(centre + within * rng.normal(size=(rng.integers(3, 9), DIM))).astype("f4") for _ in range(count)]
        windows += range(count)
    numbers = Ragged.from_lengths(torch.tensor(windows, dtype=torch.int32), [1] * len(windows))
    return TokenBatch.from_sequences(rows).with_channels(**{WINDOW: numbers})


class Spy(Detector):
    """A detector with the score -|mean token| that knows which sequences it was fitted on."""

    name = "spy"

    seen_: list

    def _fit(self, source, aux, checkpoint):  # noqa: ARG002
        self.seen_ = [len(source), count_documents(source)]

    def _score(self, tokens):
        return -torch.stack([z.double().mean(0).norm() for z in tokens])


class Memory(Detector):
    """A detector with the score 1 for documents of which it has learnt a window, which share one mean token."""

    name = "memory"
    aux = "required"

    learnt_: torch.Tensor

    def _fit(self, source, aux, checkpoint):  # noqa: ARG002
        warnings.warn("It learns by heart.", FitWarning, stacklevel=2)
        self.learnt_ = torch.stack([z.mean(0) for z in aux.select(slice(None))])

    def _score(self, tokens):
        return torch.stack([((self.learnt_ - z.mean(0)).abs().amax(1) < 1e-5).any().double() for z in tokens])


@pytest.mark.parametrize("documents", [1, 2, 7])
def test_aux_documents_are_weighed_by_fits_that_saw_no_window_of_them(documents):
    source, aux = make_documents([1] * 20), make_documents([3] * documents, seed=1, within=0.0)
    with pytest.warns(FitWarning):
        member = Memory().fit(source, aux=aux)
    assert member.score_samples(aux).tolist() == [1.0] * documents
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = score_unlearnt(member, source, aux)
    assert scores.tolist() == [np.inf if documents == 1 else 0.0] * len(aux)


@pytest.mark.parametrize(
    ("counts", "held_out"),
    [([40] * 3, 1), ([5] * 40, 4), ([1] * 40, 20), ([3] * 200, 20)],
    ids=["few long", "many", "single", "more"],
)
def test_whole_documents_are_held_out(counts, held_out):
    (member,) = Fusion([Spy()]).fit(make_documents(counts)).members_
    documents = len(counts) - held_out
    assert member.seen_ == [documents * counts[0], documents]


@pytest.mark.parametrize("seed", range(5))
def test_more_documents_are_held_out_if_those_drawn_are_short(seed):
    documents = make_documents([1] * 60 + [60])
    (member,) = Fusion([Spy()], seed=seed).fit(documents).members_
    assert 20 <= member.seen_[0] <= len(documents) - 20


def test_too_few_documents_are_refused_by_their_number():
    for counts, left in (([60], 0), ([45, 3], 3)):
        message = f"The {sum(counts)} ID sequences are windows of {len(counts)} documents. A fusion holds out"
        with pytest.raises(InputError, match=f"^{re.escape(message)}.* leaves ({left}|0) to learn from"):
            Fusion([Mahalanobis()]).fit(make_documents(counts))


@pytest.mark.parametrize("detector", [KNN(k=3, average=True), MahalanobisKNN(k=2)], ids=lambda own: own.name)
def test_neighbours_are_of_other_documents(detector):
    """The scores are those of a search that never saw the document, in the same metric."""
    train = make_documents([1, 5, 30, 4, 2, 6] * 5, within=0.3)
    documents = torch.from_numpy(number_documents(train))
    detector.fit(train)
    found = detector.score_training(torch.arange(len(train)), documents)
    assert not found.copied.any()
    bank, stretches = detector.bank_.double(), detector._find_stretches(detector.bank_.double())
    apart = bank[:, None] - bank
    squares = apart.square().sum(2)
    if stretches is not None:
        squares += stretches[:, None] * (bank[:, None] * apart).sum(2).square()
    squares[documents[:, None] == documents] = torch.inf
    nearest = squares.sqrt().topk(detector.k, largest=False).values.sort(1).values
    np.testing.assert_allclose(found.scores, -detector._reduce(nearest), rtol=1e-6)


def test_a_sequence_without_other_documents_has_no_distance():
    train = make_documents([50])
    found = KNN(k=1).fit(train).score_training(torch.arange(50), torch.zeros(50, dtype=torch.int64))
    assert (found.scores == 0).all()


def test_the_scale_of_neighbours_is_that_of_new_documents():
    detector = Fusion([KNN(k=3, average=True)]).fit(make_documents([8] * 60, within=0.2))
    (scores,) = detector.member_scores(make_documents([1] * 300, seed=1, within=0.2)).values()
    assert abs(scores.mean()) < 0.4 and 0.7 < scores.std() < 1.4


def test_member_scores_are_those_of_the_worst_window_and_sum_to_the_score():
    rng = np.random.default_rng(0)
    detector = Fusion([KNN(k=3), Mahalanobis(), APOOD(steps=5)]).fit(make_documents(rng.integers(1, 6, 60).tolist()))
    test = make_documents(rng.integers(1, 6, 30).tolist(), seed=1)
    scores = detector.member_scores(test)
    assert all(own.shape == (30,) for own in scores.values())
    np.testing.assert_allclose(sum(scores.values()), detector.score_samples(test), rtol=1e-6)
