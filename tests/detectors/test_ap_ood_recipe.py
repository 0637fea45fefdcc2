"""The recipes: their settings, arguments that override them, and arguments that are refused."""

import inspect
import math

import pytest
import torch
from builders import correlated_sequences

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.ap_ood.recipe import choose_sharpness, prepare_start, resolve
from apood.support.errors import InputError

RECIPES = ("robust", "paper", "reference")


def documented():
    """Return the table of the docstring: the settings of each recipe by argument."""
    lines = [line.strip() for line in APOOD.__doc__.splitlines() if line.strip().startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert tuple(header[1:]) == RECIPES
    return {name.strip("`()"): dict(zip(RECIPES, cells, strict=True)) for name, *cells in rows}


TABLE = documented()


def number(text):
    """Return the number at the start of a cell such as "0.001, cosine"."""
    return float(text.split()[0].rstrip(",;"))


def test_the_table_names_every_argument_that_a_recipe_sets():
    open_arguments = {
        name for name, p in inspect.signature(APOOD).parameters.items() if p.default is None or p.default == "auto"
    }
    assert open_arguments - {"device"} <= TABLE.keys()


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_recipes_are_what_the_docstring_says(recipe):
    resolved = APOOD(recipe=recipe)._resolve_recipe()
    says = {name: cells[recipe] for name, cells in TABLE.items()}
    for name in ("queries", "steps", "batch_size", "learning_rate", "aux_weight"):
        assert getattr(resolved, name) == number(says[name]), name
    for name in ("regularizer", "head_reduction", "similarity", "score"):
        assert getattr(resolved, name) == says[name].split(":")[0], name
    assert resolved.unit_tokens == (says["normalize"] == "tokens")
    assert (
        says["heads"].split(";")[0].removesuffix(" (≥ 32)")
        == {1: "D // queries", 2: "2D // queries"}[resolved.queries_per_dim]
    )
    assert resolved.heads is None
    if recipe == "robust":
        assert says["sharpness"] == "½ log median length, 0.7 to 3"
        assert resolved.sharpness == "length" and resolved.beta is None
        assert says["beta warm-up"] == "from 0 over the first half" and resolved.warm_up == 0.5
        assert "2²⁷" in says["batch_size"] and resolved.batch_elements == 2**27
    else:
        assert says["beta"] == ("1 / √D" if resolved.beta is None else f"{resolved.beta:g}")
        assert says["sharpness"] == "none" and resolved.sharpness is None
        assert says["beta warm-up"] == "none" and resolved.warm_up == 0
        assert resolved.batch_elements is None
    assert resolved.adapted == (says["tokens"] != "as they are") == (resolved.start == "mahalanobis")
    assert resolved.adapted == (says["lengths"] != "as they are")
    on_gpu = resolve(recipe, on_gpu=True)
    if recipe == "robust":
        assert says["queries"] == f"{resolved.queries}; on a GPU {on_gpu.queries}"
        assert says["heads"].endswith("; on a GPU D") and on_gpu.queries_per_dim == on_gpu.queries
    assert vars(on_gpu) | vars_of(resolved, "queries", "queries_per_dim") == vars(resolved)
    assert (on_gpu == resolved) == (recipe != "robust"), "the others do not depend on the device"
    supervised = APOOD(recipe=recipe)._resolve_recipe(supervised=True)
    different = "" if supervised.start == resolved.start else f"; with AUX {supervised.start}"
    assert says["start"] == resolved.start + different
    assert vars(supervised) | {"start": resolved.start} == vars(resolved), "only the start depends on AUX sequences"
    assert resolved.pools_logits == (says["h"] == "Σ p β a")
    assert resolved.mean_prototype == ("mean of h" in says["μ in the score"])
    assert resolved.balanced_aux == says["loss with AUX"].startswith("mean of ID + λ mean of AUX")
    assert resolved.regularized_aux == says["loss with AUX"].endswith("- R")


def vars_of(recipe, *names):
    return {name: getattr(recipe, name) for name in names}


@pytest.mark.parametrize(("queries", "heads"), [(None, 8), (4, 8), (64, 8)])
def test_a_gpu_has_time_for_as_many_heads_as_dimensions(train, queries, heads):
    recipe = resolve("robust", on_gpu=True, queries=queries)
    start = prepare_start(train, recipe, torch.Generator(), torch.device("cpu"))
    assert start.weights.shape == (heads, queries or 16, 8)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([1], 0.7), ([4] * 9, 0.7), ([5, 16, 10**6], math.log(16) / 2), ([64] * 3, math.log(64) / 2), ([10**6], 3.0)],
)
def test_the_sharpness_is_half_the_logarithm_of_the_median_length(lengths, expected):
    assert choose_sharpness(torch.tensor(lengths)) == pytest.approx(expected)


def test_the_robust_sharpness_follows_the_lengths():
    for length in (2, 40):
        batch = correlated_sequences(60, 8, lengths=(length, length))
        start, same = (
            prepare_start(batch, resolve("robust", **own), torch.Generator().manual_seed(0), torch.device("cpu"))
            for own in ({}, {"sharpness": max(0.7, math.log(length) / 2)})
        )
        assert start.beta == same.beta > 0


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("score", ["sum", "student", "min"])
def test_a_score_overrides_that_of_the_recipe(recipe, score):
    assert APOOD(recipe=recipe, score=score)._score_name == score
    assert APOOD(recipe=recipe)._score_name == ("student" if recipe == "robust" else "sum")


OVERRIDES = {
    "heads": ("heads", 3, 3),
    "queries": ("queries", 5, 5),
    "beta": ("beta", 0.25, 0.25),
    "regularizer logdet": ("regularizer", "logdet", "logdet"),
    "regularizer norm": ("regularizer", "norm", "norm"),
    "head_reduction mean": ("head_reduction", "mean", "mean"),
    "head_reduction sum": ("head_reduction", "sum", "sum"),
    "steps": ("steps", 7, 7),
    "batch_size": ("batch_size", 9, 9),
    "learning_rate": ("learning_rate", 0.5, 0.5),
    "aux_weight": ("aux_weight", 0.0, 0.0),
    "start normal": ("start", "normal", "normal"),
    "start scaled": ("start", "scaled", "scaled"),
    "start mahalanobis": ("start", "mahalanobis", "mahalanobis"),
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("name", "given", "expected"), OVERRIDES.values(), ids=OVERRIDES.keys())
def test_an_argument_overrides_the_recipe_and_nothing_else(recipe, name, given, expected):
    plain, changed = vars(resolve(recipe)), vars(APOOD(recipe=recipe, **{name: given})._resolve_recipe())
    assert changed[name] == expected
    assert {key for key in plain if plain[key] != changed[key]} <= {name}


@pytest.mark.parametrize("recipe", RECIPES)
def test_normalize_overrides_too(recipe):
    assert APOOD(recipe=recipe, normalize="tokens")._resolve_recipe().unit_tokens
    assert not APOOD(recipe=recipe, normalize="none")._resolve_recipe().unit_tokens


@pytest.mark.parametrize("recipe", ["robust", "paper"])
def test_similarity_and_mean_pooling_override_too(recipe):
    assert APOOD(recipe=recipe, similarity="euclidean")._resolve_recipe().similarity == "euclidean"
    assert APOOD(recipe=recipe, beta=0.0)._resolve_recipe().beta == 0.0


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("start", "deviation"), [("normal", 1.0), ("scaled", 8**-0.5)])
def test_a_random_start_has_its_deviation_in_every_recipe(train, recipe, start, deviation):
    resolved = resolve(recipe, start=start, heads=500, regularizer="norm")
    found = prepare_start(train, resolved, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert found.whitening is None and found.preprocessing.origin is None
    assert float(found.weights.std()) == pytest.approx(deviation, rel=0.05)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_mahalanobis_start_is_orthogonal_and_whitened_in_every_recipe(train, recipe):
    found = prepare_start(
        train, resolve(recipe, start="mahalanobis", heads=8, queries=1), torch.Generator(), torch.device("cpu")
    )
    assert found.whitening is not None and found.preprocessing.origin is not None
    torch.testing.assert_close(found.weights[:, 0] @ found.weights[:, 0].T, torch.eye(8), rtol=0, atol=1e-5)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_sharpness_gives_beta_in_every_recipe(train, recipe):
    found = [
        prepare_start(train, resolve(recipe, sharpness=s), torch.Generator().manual_seed(0), torch.device("cpu"))
        for s in (0.5, 1.0)
    ]
    half, whole = (start.beta * start.scale for start in found)
    assert whole == pytest.approx(2 * half) and whole > 0


@pytest.mark.parametrize(("queries", "paper", "robust"), [(1, 8, 8), (2, 4, 8), (3, 2, 8), (8, 1, 8), (17, 1, 8)])
def test_the_number_of_heads_follows_from_the_queries(train, queries, paper, robust):
    for recipe, heads in (("paper", paper), ("robust", robust)):
        start = prepare_start(train, resolve(recipe, queries=queries), torch.Generator(), torch.device("cpu"))
        assert start.weights.shape == (heads, queries, 8)


@pytest.mark.parametrize(("queries", "heads"), [(1, 64), (4, 32), (2, 64), (8, 32)])
def test_the_robust_recipe_has_at_least_32_heads(queries, heads):
    wide = correlated_sequences(200, 64)
    start = prepare_start(wide, resolve("robust", queries=queries), torch.Generator(), torch.device("cpu"))
    assert start.weights.shape == (heads, queries, 64)


def test_the_former_name_of_the_sharpness_is_answered_with_the_new_one():
    with pytest.raises(InputError, match=r"ap-ood has no parameter 'temperature': it is called 'sharpness' now\."):
        APOOD(temperature=0.7)


REFUSED = [
    ({"heads": 0}, "heads must be at least 1, got 0."),
    ({"heads": -1}, "heads must be at least 1, got -1."),
    ({"heads": 1.5}, "heads must be a whole number, got 1.5."),
    ({"heads": "many"}, "heads must be a whole number, got 'many'."),
    ({"queries": 0}, "queries must be at least 1, got 0."),
    ({"steps": 0}, "steps must be at least 1, got 0."),
    ({"batch_size": 0}, "batch_size must be at least 1, got 0."),
    ({"beta": -0.1}, "beta must be a finite number >= 0, got -0.1."),
    ({"beta": math.nan}, "beta must be a finite number >= 0, got nan."),
    ({"beta": math.inf}, "beta must be a finite number >= 0, got inf."),
    ({"learning_rate": 0.0}, "learning_rate must be a finite number > 0, got 0.0."),
    ({"learning_rate": -1.0}, "learning_rate must be a finite number > 0, got -1.0."),
    ({"learning_rate": math.nan}, "learning_rate must be a finite number > 0, got nan."),
    ({"aux_weight": -1.0}, "aux_weight must be a finite number >= 0, got -1.0."),
    ({"aux_weight": math.nan}, "aux_weight must be a finite number >= 0, got nan."),
    ({"aux_weight": math.inf}, "aux_weight must be a finite number >= 0, got inf."),
    ({"sharpness": -1.0}, "sharpness must be a finite number >= 0, got -1.0."),
    (
        {"sharpness": 1.0, "beta": 1.0},
        "beta and sharpness say the same thing in different units: give one of them.",
    ),
    ({"seed": -1}, "seed must be at least 0, got -1."),
    ({"seed": 0.5}, "seed must be a whole number, got 0.5."),
    ({"similarity": "cosine"}, "similarity must be one of dot, euclidean, got 'cosine'."),
    ({"score": "max"}, "score must be one of sum, student, min, got 'max'."),
    ({"regularizer": "l2"}, "regularizer must be one of logdet, norm, got 'l2'."),
    ({"recipe": "magic"}, "recipe must be one of robust, paper, reference, got 'magic'."),
    ({"start": "zero"}, "start must be one of mahalanobis, normal, scaled, got 'zero'."),
    (
        {"start": "mahalanobis", "similarity": "euclidean"},
        "start='mahalanobis' is for similarity='dot': it whitens the tokens, which changes euclidean neighbourhoods; "
        "leave start out, or use 'normal' or 'scaled'.",
    ),
    (
        {"recipe": "reference", "similarity": "euclidean"},
        "recipe='reference' pools beta times the dot products, so it has similarity='dot' only; "
        "use recipe='paper' or 'robust' for 'euclidean'.",
    ),
    (
        {"recipe": "reference", "beta": 0.0},
        "recipe='reference' pools beta times the dot products, and with beta = 0 they are all 0; "
        "use recipe='paper' or 'robust' for mean pooling.",
    ),
    (
        {"recipe": "reference", "sharpness": 0.0},
        "recipe='reference' pools beta times the dot products, and with beta = 0 they are all 0; "
        "use recipe='paper' or 'robust' for mean pooling.",
    ),
    ({"normalize": "pooled"}, "normalize must be one of tokens, none, got 'pooled'."),
    ({"head_reduction": "max"}, "head_reduction must be one of mean, sum, got 'max'."),
    (
        {"heads": 9, "queries": 1},
        "regularizer='logdet' keeps heads linearly independent, "
        "so there can be at most queries * D = 8 of them, got 9.",
    ),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED, ids=[str(arguments) for arguments, _ in REFUSED])
def test_arguments_that_are_not_allowed_are_refused(train, arguments, sentence):
    with pytest.raises(InputError) as caught:
        APOOD(**arguments).fit(train)
    assert str(caught.value) == sentence
