"""Plans, in Python and as TOML: what they mean, and the sentence for every mistake."""

import os
from dataclasses import replace

import pytest
import torch
from builders import correlated_sequences, side_channels

from apood.detectors.contract.registry import METHODS
from apood.detectors.knn import KNN
from apood.evaluation.comparison import ComparisonPlan, check_plan, draw_splits, read_plan
from apood.evaluation.entry import Entry
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

STORES = {"train": 40, "test": 30, "validation": 30, "near": 20, "far": 20, "aux": 10}


def write(folder, batch, **options):
    with TokenStoreWriter(folder, dim=batch.dim, dtype=batch.dtype, **options) as writer:
        writer.append(batch)


def with_logits(batch):
    return batch.with_channels(logits=Ragged.from_lengths(torch.randn(len(batch), 3), [1] * len(batch)))


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    for seed, (name, count) in enumerate(STORES.items()):
        write(folder / name, correlated_sequences(count, 4, seed=seed))
        write(folder / f"{name}-logits", with_logits(correlated_sequences(count, 4, seed=seed)))
    write(folder / "one", correlated_sequences(1, 4))
    write(folder / "empty", correlated_sequences(1, 4).select([]))
    write(folder / "wide", correlated_sequences(20, 5))
    write(folder / "copy", correlated_sequences(STORES["test"], 4, seed=1))
    for name, model in (("mine", "a"), ("other", "b")):
        write(folder / name, correlated_sequences(20, 4, seed=ord(model)), encoder={"model": model})
    write(folder / "no-tokens", with_logits(TokenBatch.from_lengths(torch.empty(0, 4), [0] * 20)))
    return folder


@pytest.fixture
def toml(stores):
    """Reads a plan that lies among the stores."""

    def read(text, name="plan.toml"):
        (stores / name).write_text(text, encoding="utf-8")
        return read_plan(stores / name)

    return read


@pytest.fixture
def refused(toml, stores):
    """The sentence, which begins with the file."""

    def sentence(text):
        with pytest.raises(InputError) as error:
            toml(text)
        message = str(error.value)
        beginning = f"{stores / 'plan.toml'}: "
        assert message.startswith(beginning) and message.endswith(".") and "\n" not in message
        return message.removeprefix(beginning)

    return sentence


DATA = '[data]\nid_train = "train"\nid_test = "test"\nood = {near = "near", far = "far"}\n'


def test_a_small_plan_has_the_defaults_of_the_paper(toml, stores):
    plan = toml(DATA)
    assert (plan.splits, plan.share, plan.seed, plan.aux) == (5, 0.8, 0, None)
    assert plan.id_train == stores / "train" and plan.ood == {"near": stores / "near", "far": stores / "far"}


def test_a_plan_with_everything(toml, stores):
    plan = toml(
        """
        splits = 2
        share = 1
        seed = 7
        [data]
        id = "train"
        id_validation = "validation"
        test_share = 0.5
        aux = "aux"
        [data.ood]
        "far away" = "far"
        [[methods]]
        method = "ap-ood"
        name = "AP-OOD, T = 1"
        aux = true
        [methods.parameters]
        queries = 1
        [[methods]]
        method = "knn"
        parameters = {k = 3}
        """
    )
    methods = (Entry("ap-ood", {"queries": 1}, "AP-OOD, T = 1", aux="all"), Entry("knn", {"k": 3}))
    assert plan == ComparisonPlan(
        ood={"far away": stores / "far"}, id=stores / "train", id_validation=stores / "validation", aux=stores / "aux",
        methods=methods, test_share=0.5, splits=2, share=1, seed=7,
    )  # fmt: skip
    assert [method.label for method in plan.methods] == ["AP-OOD, T = 1", "knn, k=3"]


def test_mistakes_are_refused_before_any_set_is_found(stores):
    path = stores / "plan.toml"
    for mistake in ('[[methods]]\nmethod = "kn"', '[[methods]]\nmethod = "binary-logits"'):
        path.write_text(f"{DATA}{mistake}")
        with pytest.raises(InputError, match="Method 1"):
            read_plan(path, lambda name: pytest.fail(f"{name} was looked for"))
    path.write_text(DATA.replace("[data]", "splits = 0\n[data]"))
    with pytest.raises(InputError, match="splits"):
        read_plan(path, lambda name: pytest.fail(f"{name} was looked for"))


def test_names_of_inputs_are_relative_to_the_plan_where_they_are_files(stores):
    names = {
        "id_train": "files:train", "id_test": "hf:someone/news:test", "id_validation": "s3://bucket/held-out.jsonl",
        "aux": "-",
    }  # fmt: skip
    lines = "\n".join(f'{key} = "{name}"' for key, name in names.items())
    (stores / "inputs.toml").write_text(f'[data]\n{lines}\nood = {{near = "near", far = "opus-it:opus/Ubuntu.en-fr"}}')
    found = []

    def find(name):
        found.append(name)
        return correlated_sequences(40, 4, seed=len(found))

    read_plan(stores / "inputs.toml", find)
    assert found == [
        f"files:{stores / 'train'}", "hf:someone/news:test", "s3://bucket/held-out.jsonl", "-", str(stores / "near"),
        f"opus-it:{stores / 'opus/Ubuntu.en-fr'}",
    ]  # fmt: skip


def by_default(plan):
    return {method.label: method for method in plan.methods}


def test_all_methods_that_the_data_allow_are_compared(toml):
    alone, learning = by_default(toml(DATA)), by_default(toml(f'{DATA}aux = "aux"'))
    pairs = {f"{method}, normalize={n}" for method in ("mahalanobis", "knn") for n in ("none", "pooled")}
    assert {"ap-ood", "length", *pairs} <= set(alone) < set(learning)
    assert not any(method.uses_aux for method in alone.values())
    assert learning["ap-ood, AUX"].uses_aux and not learning["ap-ood"].uses_aux
    for name in METHODS:
        requirement = Entry(name).make_detector()
        fits = requirement.requires == {"tokens"} and requirement.aux != "required" and name != "deep-sad"
        assert fits == any(method.method == name for method in alone.values()), name
        if requirement.aux == "required" and requirement.requires == {"tokens"}:
            assert all(method.uses_aux for method in learning.values() if method.method == name)
    assert learning["relative-mahalanobis"].uses_aux


def test_no_method_is_compared_with_itself(toml):
    alone, learning = by_default(toml(DATA)), by_default(toml(f'{DATA}aux = "aux"'))
    assert "deep-sad, AUX" in learning and not {"deep-sad"} & {*alone, *learning}  # without AUX it is deep-svdd
    assert "fusion" in alone and {"fusion", "fusion, AUX"} <= set(learning)


def test_methods_on_channels_need_them_in_every_store(stores):
    def chosen(**data):
        return {method.method for method in check_plan(ComparisonPlan(**data)).methods}

    logits = {key: stores / f"{name}-logits" for key, name in (("id_train", "train"), ("id_test", "test"))}
    needs_logits = {name for name in METHODS if Entry(name).make_detector().requires == {"logits"}}
    both = chosen(ood={"near": stores / "near-logits"}, **logits)
    assert both >= needs_logits
    assert chosen(ood={"near": stores / "near"}, **logits) == both - needs_logits
    without_tokens = {"ood": {"near": stores / "no-tokens"}, **logits}
    if needs_logits:
        assert chosen(**without_tokens) == needs_logits
    else:
        with pytest.raises(InputError, match="No registered method can work with these stores"):
            check_plan(ComparisonPlan(**without_tokens))
    with pytest.raises(InputError, match=r"Method 1, knn, needs tokens, which the store .* of ood.near lacks"):
        check_plan(ComparisonPlan(methods=[Entry("knn")], **without_tokens))


def test_aux_sequences_need_only_what_is_learnt_from_them():
    batches = [correlated_sequences(40, 4, seed=seed) for seed in range(4)]
    train, test, near = (batch.with_channels(sentences=side_channels(40)["sentences"]) for batch in batches[:3])
    entry = Entry("fusion", {"sentences": True}, aux="all")
    plan = ComparisonPlan(id_train=train, id_test=test, ood={"near": near}, aux=batches[3], methods=[entry])
    assert check_plan(plan).methods == (entry,)
    with pytest.raises(InputError, match=r"Method 1, .*, needs sentences, which the set ood.near lacks"):
        check_plan(replace(plan, ood={"near": batches[2]}))


@pytest.mark.parametrize("key", ["id", "id_train", "aux"])
def test_an_empty_sequence_is_refused_by_its_number_in_the_store(stores, tmp_path, key):
    batch = correlated_sequences(30, 4, seed=9)
    parts = [batch.select(slice(0, 7)), TokenBatch.from_lengths(torch.empty(0, 4), [0]), batch.select(slice(7, 30))]
    write(tmp_path / "holes", TokenBatch.concatenate(parts))
    given = {
        "ood": {"near": stores / "near"},
        "methods": [Entry("ap-ood", aux="all" if key == "aux" else 0), Entry("knn")],
    }
    given |= {"id": None} if key == "id" else {"id_train": stores / "train", "id_test": stores / "test"}
    plan = ComparisonPlan(**given | {key: tmp_path / "holes"})
    with pytest.raises(InputError, match=rf"^Sequence 7 of the store .*holes of {key} has no tokens; remove empty"):
        check_plan(plan)
    if key == "aux":
        assert check_plan(replace(plan, methods=[Entry("knn")]))  # which does not look at it


MISTAKES = {
    "splits = 0\n": "splits must be at least 1, got 0",
    "splits = true\n": "splits in the plan must be a whole number, got True",
    "splits = 2.0\n": "splits in the plan must be a whole number, got 2.0",
    "share = 0\n": "share must be a finite number > 0 and <= 1, got 0",
    "seed = -1\n": "seed must be at least 0, got -1",
    "repeats = 3\n": "no key 'repeats' in the plan; allowed are splits, share, seed, data, methods",
    "methods = []\n": "methods is empty",
    "methods = [1]\n": "methods must be a list of tables, got 1",
    "methods = [{}]\n": "The key method is missing in method 1",
    'methods = [{method = "svm"}]\n': "Method 1: There is no method 'svm'; there are ap-ood, ",
    'methods = [{method = "knn", k = 3}]\n': "no key 'k' in method 1; allowed are method, name, aux, parameters",
    'methods = [{method = "knn", aux = 1}]\n': "aux in method 1 must be true or false, got 1",
    'methods = [{method = "knn", aux = true}]\n': "Method 1: knn learns from in-distribution data alone",
    'methods = [{method = "ap-ood", aux = true}]\n': "Method 1, ap-ood, AUX, learns from AUX sequences, and aux is not",
    'methods = [{method = "ap-ood", parameters = {temperature = 3.0}}]\n': "(it is called 'sharpness' now); there are ",
    'methods = [{method = "knn", parameters = {q = 3}}]\n': "knn has no parameter 'q'; there are k, normalize",
    'methods = [{method = "knn", parameters = {k = 0}}]\n': "parameters of knn are not allowed: k must be at least 1",
    'methods = [{method = "ap-ood", parameters = {seed = "a"}}]\n': "Method 1: The parameters of ap-ood are not",
    'methods = [{method = "knn"}, {method = "knn"}]\n': "Method 2 is called 'knn' like method 1",
    'methods = [{method = "knn"}, {method = "knn", parameters = {k = 5}}]\n': "knn, k=5, is method 1, knn, under",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_outside_the_data(refused, text):
    assert MISTAKES[text] in refused(text + DATA)


TRAIN, TEST, NEAR = 'id_train = "train"\n', 'id_test = "test"\n', 'ood.near = "near"\n'
DATA_MISTAKES = {
    "": "The ID sequences are either id_train and id_test, or id alone, got none of them",
    TRAIN + NEAR: "or id alone, got id_train",
    f'id = "train"\n{TEST}{NEAR}': "or id alone, got id and id_test",
    TRAIN + TEST: "ood must name at least one set of OOD sequences, got none",
    f"{TRAIN}{TEST}ood = 3": "ood in [data] must be a table, got 3",
    f'{TRAIN}{TEST}ood.mean = "near"': "An OOD set cannot be called 'mean'",
    f'{TRAIN}{TEST}{NEAR}validation = "x"': "no key 'validation' (did you mean 'id_validation'?) in [data]; allowed",
    f'{TRAIN}{TEST}ood.x = "nowhere"': "ood.x: ",
    f'{TRAIN}{TEST}{NEAR}aux = "nowhere"': "nowhere': nothing is at that path",
    f'{TRAIN}{TEST}ood.x = "empty"': "empty of ood.x has 0 sequences; a split draws 0 of them (share 0.8), and at l",
    f'id_train = "one"\n{TEST}{NEAR}': "one of id_train has 1 sequence; a split draws 1 of them (share 0.8), and at l",
    f'id = "one"\n{NEAR}': "one of id has 1 sequence, and at least 2 are needed",
    f'{TRAIN}{TEST}{NEAR}id_validation = "far"': "draws 16 of them (share 0.8), and at least 19 are needed",
    f'{TRAIN}{TEST}ood.x = "wide"': "The ood.x tokens have D=5, the id_train tokens have D=4",
    f'id_train = "mine"\n{TEST}ood.x = "other"': "ood.x tokens come from another encoder (model b)",
    f'{TRAIN}{TEST}ood.x = "copy"': "The ood.x sequences are the id_test sequences",
    f'id = "train"\n{NEAR}test_share = 1': "test_share must be a finite number > 0 and < 1, got 1",
    f'id = "train"\n{NEAR}test_share = 0.001': "0.001 divides the 40 sequences of the store ",
}


@pytest.mark.parametrize("text", DATA_MISTAKES)
def test_mistakes_in_the_data(refused, text):
    assert DATA_MISTAKES[text] in refused(f"[data]\n{text}")


def test_a_plan_without_data(refused):
    assert "The table [data]" in refused("splits = 2")


def test_files_that_are_no_plans(tmp_path, toml):
    with pytest.raises(InputError, match=r"The plan .*no\.toml cannot be read: No such file"):
        read_plan(tmp_path / "no.toml")
    with pytest.raises(InputError, match=r"The plan .*plan\.toml is not TOML: .*line 1"):
        toml("splits = = 3")
    (tmp_path / "latin.toml").write_bytes("# à".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.toml is not TOML"):
        read_plan(tmp_path / "latin.toml")
    for name, content in {"deep": f"a = {'[' * 100_000}", "digits": f"a = {'9' * 5000}"}.items():
        (tmp_path / f"{name}.toml").write_text(content)
        with pytest.raises(InputError, match=f"{name}.toml is not TOML"):
            read_plan(tmp_path / f"{name}.toml")
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(InputError, match="only regular files are read"):
        read_plan(tmp_path / "pipe.toml")


# splits


def plan_of(stores, **changes):
    data = {"ood": {"near": stores / "near"}, "id_train": stores / "train", "id_test": stores / "test"}
    return ComparisonPlan(**data | {"methods": [Entry("knn")]} | changes)


def drawn(plan, number):
    data = draw_splits(plan)[number]
    sets = {"train": data.train, "test": data.test, **data.ood}
    return {key: getattr(source, "indices", torch.arange(len(source))).tolist() for key, source in sets.items()}


def test_a_split_draws_its_share_of_every_store(stores):
    first, second = (drawn(plan_of(stores), number) for number in (0, 1))
    assert {key: len(own) for key, own in first.items()} == {"train": 32, "test": 24, "near": 16}
    for key, own in first.items():
        assert own == sorted(set(own)) and own != second[key]


def test_splits_do_not_depend_on_each_other_and_follow_the_seed(stores):
    plan = plan_of(stores)
    more = plan_of(stores, ood={"far": stores / "far", "near": stores / "near"}, splits=2)
    assert drawn(more, 1)["near"] == drawn(plan, 1)["near"] and drawn(more, 1)["train"] == drawn(plan, 1)["train"]
    assert drawn(plan_of(stores, seed=1), 0) == drawn(plan, 1)


def test_whole_sets(stores):
    plan = plan_of(stores, share=1)
    assert drawn(plan, 0) == drawn(plan, 1)
    assert isinstance(draw_splits(plan)[0].train, TokenStore)


def test_one_store_is_parted_anew(stores):
    plan = plan_of(stores, id_train=None, id_test=None, id=stores / "train", test_share=0.25)
    first, second = drawn(plan, 0), drawn(plan, 1)
    for split in (first, second):
        assert len(split["test"]) == 10 and sorted(split["train"] + split["test"]) == list(range(40))
    assert first["test"] != second["test"]


def test_seeds_follow_the_split():
    assert Entry("ap-ood").make_detector(3).seed == 3
    assert Entry("ap-ood", {"seed": 10}).make_detector(3).seed == 13
    assert Entry("knn").make_detector(3).get_params() == Entry("knn").make_detector().get_params()


@pytest.mark.parametrize("seed", [None, "3", 0.5, True])
def test_a_seed_that_is_no_integer_is_refused_by_name(seed):
    with pytest.raises(InputError, match=f"^The parameters of ap-ood are not allowed: seed must be .*, got {seed!r}"):
        Entry("ap-ood", {"seed": seed}).check()


def test_a_method_is_a_name_a_class_a_detector_or_an_entry():
    entry = Entry("knn", name="mine")
    assert Entry.from_method(entry) is entry and Entry.from_method("knn") == Entry("knn")
    assert Entry.from_method(KNN) == Entry(KNN) and Entry.from_method(KNN(k=3)) == Entry(KNN, {"k": 3})
    assert Entry.from_method("apood.detectors.knn:KNN").label == "knn"
    for wrong in (3, list, None):
        with pytest.raises(InputError, match="A method is a name, a subclass of Detector, a detector or an Entry"):
            Entry.from_method(wrong)


def test_labels():
    assert Entry("knn", {"k": 1, "normalize": "none"}).label == "knn, k=1, normalize=none"
    assert Entry("ap-ood", aux="all").label == "ap-ood, AUX"
    assert Entry("knn", {"k": 1}, name="mine").label == "mine"
