"""A translator from pairs of texts: its vocabulary, its batches, what it learns, and the folder that it becomes."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_texts import translated, word_pairs
from safetensors import safe_open

from apood.backbones import translator
from apood.backbones.bleu import bleu, translate, translation_loss, validation_loss
from apood.backbones.corpus import (
    EOS,
    PAD,
    Batches,
    Corpus,
    Sentences,
    decode_ids,
    encode_texts,
    pad_pairs,
    train_vocabulary,
    write_tokenizer,
)
from apood.backbones.training_loop import Schedule
from apood.backbones.translator import (
    SIZES,
    Recipe,
    split_pairs,
    train_translator,
)
from apood.data.record import Pair
from apood.fitting.optimise import Checkpoint
from apood.support.errors import ArtefactError, InputError

PAIRS = word_pairs(2000)
LEARNED, TESTED = PAIRS[:1940], PAIRS[1940:]
TEXTS = [text for pair in PAIRS for text in pair]
RECIPE = Recipe(
    Schedule(240, 3e-3, warm_up=0.2, validate_every=120), "tiny", 35, 32, 256, dropout=0.0, label_smoothing=0.0
)
SHORT = Recipe(Schedule(6, 3e-3), "tiny", 35, 32, 512)


@pytest.fixture(scope="module")
def vocabulary() -> bytes:
    return train_vocabulary(TEXTS, 35)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Several threads are slower for matrices as small as these."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train_in(
    folder: Path, recipe: Recipe = SHORT, pairs=LEARNED[:200], tested=TESTED[:4], every_seconds=0.0, **options
):
    checkpoint = Checkpoint(folder.with_name(f"{folder.name}.checkpoint"), every_seconds)
    return train_translator(pairs, tested, folder, recipe, checkpoint=checkpoint, beams=2, device="cpu", **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder and the report of a translator that has learned its language pair."""
    folder = tmp_path_factory.mktemp("trained") / "translator"
    return folder, train_in(folder, RECIPE, LEARNED, TESTED, every_seconds=1e9)


def load(folder: Path):
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Marian, about a package that it does not use
        return AutoModelForSeq2SeqLM.from_pretrained(folder).float().eval(), AutoTokenizer.from_pretrained(folder)


def test_a_vocabulary_follows_from_its_texts(vocabulary):
    assert train_vocabulary(TEXTS, 35) == vocabulary
    assert train_vocabulary(TEXTS[:500], 30) != vocabulary


def test_texts_survive_a_round_trip(vocabulary):
    ids, lengths = encode_texts(vocabulary, TEXTS)
    assert ids.dtype == np.int32 and lengths.sum() == len(ids)
    pieces = np.split(ids, np.cumsum(lengths)[:-1])
    assert all(some[-1] == EOS and (some[:-1] > PAD).all() for some in pieces)
    assert decode_ids(vocabulary, [some.tolist() for some in pieces]) == TEXTS


def test_the_tokenizer_gives_the_same_ids(vocabulary, tmp_path):
    from transformers import MarianTokenizer

    write_tokenizer(vocabulary, tmp_path, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = MarianTokenizer.from_pretrained(tmp_path)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.model_max_length) == (EOS, PAD, 32)
    for texts, named in ((TEXTS[0:40:2], "text"), (TEXTS[1:40:2], "text_target"), (["unseen wörds"], "text")):
        ids, lengths = encode_texts(vocabulary, texts)
        found = tokenizer(**{named: texts}).input_ids
        assert [len(row) for row in found] == lengths.tolist()
        assert [token for row in found for token in row] == ids.tolist()
    assert tokenizer.decode(tokenizer(TEXTS[0]).input_ids, skip_special_tokens=True) == TEXTS[0]


@pytest.mark.parametrize(
    ("texts", "size", "message"),
    [
        (TEXTS, 5000, r"5000 pieces .* allow \d+ at most"),
        (TEXTS, 10, r"10 pieces .* characters alone need \d+"),
        ([" ", ""], 10, "10 pieces .* no words"),
        (TEXTS, 3, "at least 8, got 3"),
    ],
)
def test_impossible_vocabularies_are_refused(texts, size, message):
    with pytest.raises(InputError, match=message):
        train_vocabulary(texts, size)


def corpus_of(lengths: list[tuple[int, int]]) -> Corpus:
    """Return pairs of the given lengths. All ids of pair i are 10 + i."""

    def side(which: int) -> Sentences:
        counts = np.array([pair[which] for pair in lengths])
        return Sentences(
            np.repeat(np.arange(len(counts), dtype=np.int32) + 10, counts), counts.cumsum() - counts, counts
        )

    return Corpus(side(0), side(1), np.arange(len(lengths)), 0, 0)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(2, 40), st.integers(2, 40)), min_size=1, max_size=80),
    st.integers(40, 400),
    st.integers(0, 5),
)
def test_every_pair_is_in_one_batch_of_an_epoch_and_no_batch_is_too_large(lengths, batch_tokens, seed):
    corpus = corpus_of(lengths)
    batches = Batches(corpus, batch_tokens, seed)
    planned = batches.plan_epoch(0)
    assert sorted(np.concatenate(planned).tolist()) == list(range(len(lengths)))
    for step, chosen in enumerate(planned):
        tensors, tokens = batches(step)
        assert tokens == sum(sum(lengths[i]) for i in chosen.tolist())
        for name, which in (("sources", 0), ("targets", 1)):
            rows = tensors[name]
            assert rows.numel() <= max(batch_tokens, 40) and rows.shape[1] % 8 == 0
            for i, row in zip(chosen.tolist(), rows, strict=True):
                length = lengths[i][which]
                assert row.tolist() == [10 + i] * length + [PAD] * (rows.shape[1] - length)
        assert (tensors["given"][:, 0] == PAD).all()
        assert torch.equal(tensors["given"][:, 1:], tensors["targets"][:, :-1])


def test_batches_follow_from_the_number_of_the_step():
    corpus = corpus_of([(2 + i % 17, 2 + i % 23) for i in range(300)])
    in_order = Batches(corpus, 128, 0)
    expected = [in_order(step) for step in range(200)]
    count = len(in_order.plan_epoch(0))
    assert count < 200, "more than an epoch"
    assert not torch.equal(expected[0].tensors["sources"], expected[count].tensors["sources"])
    for step in (199, 0, count, 42):
        found = Batches(corpus, 128, 0)(step)
        assert all(torch.equal(found.tensors[name], expected[step].tensors[name]) for name in found.tensors)
    assert torch.equal(in_order(3).tensors["sources"], expected[3].tensors["sources"]), "backwards too"
    assert not torch.equal(Batches(corpus, 128, 1)(0).tensors["sources"], expected[0].tensors["sources"])


def test_little_of_a_batch_is_padding():
    dice = np.random.default_rng(0)
    lengths = dice.integers(2, 200, 5000)
    corpus = corpus_of([(int(n), max(2, int(n) - 3)) for n in lengths])
    batches = Batches(corpus, 8192, 0)
    planned = len(batches.plan_epoch(0))
    padded = sum(batches(step).tensors["sources"].numel() for step in range(planned))
    assert lengths.sum() / padded > 0.9


def test_pairs_that_cannot_be_used_are_left_out_and_counted(vocabulary):
    word = TEXTS[0].split()[0]
    texts = [word, " ", word, " ".join([word] * 16), " ".join([word] * 15)]
    pairs = list(map(Pair, texts, [word, word, "", word, word]))
    corpus = Corpus.encode(vocabulary, pairs, context=16)
    assert (len(corpus), corpus.empty, corpus.too_long, corpus.kept.tolist()) == (2, 2, 1, [0, 4])


def test_the_loss_is_the_mean_over_the_real_tokens(trained):
    """Padding and the sizes of batches do not change it; it is the model's own loss of each pair."""
    model, tokenizer = load(trained[0])
    corpus = Corpus.encode((trained[0] / "source.spm").read_bytes(), TESTED[:9], 32)
    losses, tokens = [], []
    with torch.no_grad():
        for pair in TESTED[:9]:
            labels = tokenizer(text_target=pair.target, return_tensors="pt").input_ids
            given = tokenizer(pair.source, return_tensors="pt")
            losses.append(float(model(**given, labels=labels).loss))
            tokens.append(labels.numel())
        smoothed = translation_loss(model, pad_pairs(corpus, np.arange(9)).tensors, 0.1)
    expected = np.average(losses, weights=tokens)
    for batch_tokens in (8, 30, 1000):
        assert validation_loss(model, corpus, batch_tokens) == pytest.approx(expected, rel=1e-4)
    assert float(smoothed) > expected


def test_bleu_is_that_of_sacrebleu():
    assert bleu(["the cat sat on the mat"], ["the cat sat on the mat"])[0] == pytest.approx(100)
    score, signature = bleu(["the cat sat on the mat today"], ["the cat sat on a mat today"])
    assert 20 < score < 80 and "tok:13a" in signature


def test_a_translator_learns_to_translate(trained):
    folder, report = trained
    assert report["validation"]["pairs"] == len(TESTED)
    assert report["validation"]["BLEU, greedy"] > 90
    assert report["validation"]["BLEU, 2 beams"] > 90
    assert report["training"]["steps"] == 240
    kept = json.loads((folder / "training.json").read_text())
    assert kept["validation"] == report["validation"] and len(kept["losses"]) == 12
    assert [step for step, _ in kept["validation losses"]] == [120, 240]
    assert kept["recipe"]["plan"]["learning_rate"] == 3e-3 and kept["recipe"]["vocabulary"] == 35
    assert kept["validation losses"][1][1] == pytest.approx(report["validation"]["loss"], rel=0.05), "float16 agrees"
    assert [step for step, _ in kept["validation losses with other sources"]] == [120, 240]
    assert report["validation"]["loss with other sources"] > 10 * report["validation"]["loss"], "sources matter"


def test_the_folder_is_an_ordinary_one(trained):
    """It translates with nothing but transformers, and its weights are float16."""
    folder, report = trained
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118 not a dict
    model, tokenizer = load(folder)
    sources = [pair.source for pair in TESTED]
    with torch.inference_mode():
        output = model.generate(**tokenizer(sources, return_tensors="pt", padding=True), num_beams=1)
    found = tokenizer.batch_decode(output, skip_special_tokens=True)
    assert sum(text == translated(source) for text, source in zip(found, sources, strict=True)) > 0.8 * len(sources)
    vocabulary = (folder / "source.spm").read_bytes()
    corpus = Corpus.encode(vocabulary, TESTED, 32)
    assert translate(model, corpus, vocabulary, beams=1, batch_tokens=64) == found
    assert report["weights"] == sum(parameter.numel() for parameter in model.parameters())


def test_an_encoder_takes_the_folder(trained):
    from apood.encoders.text.encoder import TextEncoder

    encoder = TextEncoder(str(trained[0]))
    assert encoder.dim == SIZES["tiny"].width
    assert encoder.encode(["baran kosil"]).lengths.tolist() == [3]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_an_interrupted_training_ends_like_an_uninterrupted_one(tmp_path, monkeypatch):
    expected = train_in(tmp_path / "whole", dtype=torch.float32)
    make = Batches.__call__

    def interrupted(self, step):
        if step == 4:
            raise KeyboardInterrupt
        return make(self, step)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Batches, "__call__", interrupted)
        train_in(tmp_path / "parts", dtype=torch.float32)
    assert not (tmp_path / "parts").exists()
    vocabularies = []
    with monkeypatch.context() as patch:  # the vocabulary is not learned again
        patch.setattr("apood.backbones.translator.train_vocabulary", lambda *given: vocabularies.append(given))
        found = train_in(tmp_path / "parts", dtype=torch.float32)
    assert not vocabularies
    assert found["validation"] == expected["validation"] and found["training"]["loss"] == expected["training"]["loss"]
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert whole.keys() == parts.keys() and all(torch.equal(whole[name], parts[name]) for name in whole)


def test_the_state_of_another_training_is_refused(tmp_path):
    train_in(tmp_path / "a")
    for recipe, pairs in (
        (Recipe(Schedule(6, 1e-3), "tiny", 35, 32, 512), LEARNED[:200]),  # the state of the training
        (SHORT, LEARNED[:199]),  # that of the vocabulary
    ):
        with pytest.raises(ArtefactError, match="other settings, data"):
            train_in(tmp_path / "a", recipe, pairs)
    checkpoint = Checkpoint(tmp_path / "a.checkpoint", 0)
    assert checkpoint.exists()
    checkpoint.delete()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_pairs_are_split_pairs_by_the_seed():
    learned, tested = split_pairs(PAIRS, 50, seed=0)
    assert len(tested) == 50 and len(learned) == 1950
    assert sorted(learned + tested) == sorted(PAIRS)
    assert split_pairs(PAIRS, 50, seed=0)[1] == tested != split_pairs(PAIRS, 50, seed=1)[1]
    assert len(split_pairs(PAIRS, 1000, seed=0)[1]) == 100, "one in twenty at most"
    assert len(split_pairs(PAIRS[:2], 1000, seed=0)[1]) == 1
    with pytest.raises(InputError, match=r"at least 2 pairs.* got 1"):
        split_pairs(PAIRS[:1], 10, seed=0)


@pytest.fixture(scope="module")
def untrained():
    """An untrained model as deep as those that are trained in practice."""
    return translator._make_model(Recipe(Schedule(1, 1e-3), "small", 35, 32, 512))


def test_weights_start_as_large_as_they_should(untrained):
    """Matrices start as Xavier's, the first one of each residual branch smaller; the padding token is zero."""
    embeddings = untrained.get_input_embeddings().weight.detach()
    assert not embeddings[PAD].any()
    assert float(embeddings[PAD + 1 :].std()) == pytest.approx(384**-0.5, rel=0.05)
    for stack, branches in ((untrained.get_encoder(), 6 * 2), (untrained.get_decoder(), 4 * 3)):
        matrices = {name: weight.detach() for name, weight in stack.layers.named_parameters() if weight.ndim == 2}
        for name, matrix in matrices.items():
            xavier = (2 / sum(matrix.shape)) ** 0.5
            damped = branches**-0.5 if "v_proj" in name or "fc1" in name else 1
            assert float(matrix.std()) == pytest.approx(damped * xavier, rel=0.02), name


def test_an_untrained_encoder_tells_tokens_apart(untrained):
    """If all states were alike from the start, they might stay so."""
    ids = torch.arange(PAD + 1, 35)[None]
    with torch.no_grad():
        states = untrained.eval().get_encoder()(input_ids=ids).last_hidden_state[0]
    cosines = torch.corrcoef(states)
    assert float(cosines[~torch.eye(len(cosines), dtype=torch.bool)].mean()) < 0.5


def test_exchanged_sources_belong_to_pairs_of_similar_length():
    corpus = corpus_of([(2 + 7 * i % 31, 2 + 7 * i % 31) for i in range(31)])
    exchanged = corpus.exchange_sources()
    first_ids = exchanged.sources.ids[exchanged.sources.starts]
    assert sorted(first_ids.tolist()) == list(range(10, 41)), "each is used once"
    assert (first_ids != np.arange(10, 41)).all(), "but not with its own target"
    assert exchanged.targets is corpus.targets
    assert sorted(abs(exchanged.sources.lengths - corpus.sources.lengths).tolist()) == [1] * 30 + [30]


@pytest.fixture
def deaf(monkeypatch):
    """Make translators whose encoder gives every token the same state, whatever they learn."""
    make = translator._make_model

    def made(recipe):
        model = make(recipe)
        for parameter in model.get_encoder().layers[-1].final_layer_norm.parameters():
            parameter.requires_grad_(False).zero_()
        return model

    monkeypatch.setattr(translator, "_make_model", made)


IMPATIENT = Recipe(Schedule(10, 3e-3, validate_every=2), "tiny", 35, 32, 512)
PATIENT = Recipe(Schedule(10, 3e-3, warm_up=0.6, validate_every=2), "tiny", 35, 32, 512)


@pytest.mark.usefixtures("deaf")
def test_a_translator_that_ignores_its_sources_is_not_trained_to_the_end(tmp_path, capsys):
    message = r"at step {} the model ignores its inputs.* (\d\.\d+), is hardly larger than with its own, \1;"
    for step in (4, 6):  # at step 2 it was too early to say; the second time it goes on from the checkpoint
        with pytest.raises(InputError, match=message.format(step)):
            train_in(tmp_path / "a", IMPATIENT, every_seconds=1e9)
        with safe_open(tmp_path / "a.checkpoint", "pt") as file:
            assert file.metadata()["step"] == str(step)
            assert file.get_tensor("exchanged")[:, 0].tolist() == list(range(2, step + 1, 2))
    assert not (tmp_path / "a").exists()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["step 2", "step 4", "step 6"], "no terminal, but it takes hours"
    assert all("tokens/s, validation loss" in line and "with exchanged inputs), 0.0 minutes" in line for line in lines)


@pytest.mark.usefixtures("deaf")
def test_a_translator_is_given_time_to_warm_up(tmp_path):
    with pytest.raises(InputError, match="at step 8 the model ignores its inputs"):
        train_in(tmp_path / "a", PATIENT)


@pytest.mark.usefixtures("deaf")
def test_a_single_source_cannot_be_exchanged(tmp_path):
    report = train_in(tmp_path / "a", IMPATIENT, tested=TESTED[:1])
    assert "loss with other sources" not in report["validation"]


def test_the_small_translator_is_small():
    """Its weights in float16 and its vocabulary fit into 60 MB."""
    with torch.device("meta"):
        model = translator._make_model(Recipe(Schedule(1, 1e-3), "small"))
    assert 2 * sum(parameter.numel() for parameter in model.parameters()) < 57e6


def test_impossible_recipes_are_refused():
    for name, value in {
        "size": "huge", "context": 30, "batch_tokens": 100, "dropout": 1.0, "label_smoothing": -0.1
    }.items():  # fmt: skip
        with pytest.raises(InputError, match=str(value)):
            Recipe(Schedule(1, 1e-3), **{name: value})


def test_sets_without_a_usable_pair_are_refused(tmp_path):
    with pytest.raises(InputError, match="no pairs to learn from"):
        train_in(tmp_path / "a", pairs=[])
    with pytest.raises(InputError, match="no pairs to validate on"):
        train_in(tmp_path / "a", tested=[])
    long = Pair(" ".join(TEXTS[0].split()[:1] * 40), "baran")
    with pytest.raises(InputError, match=r"1 pairs to validate on .* 1 have a side of more than 32 tokens"):
        train_in(tmp_path / "a", tested=[long])
