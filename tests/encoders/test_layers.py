"""The layers that tokens are made of: how they are named, and how they are taken while a model runs."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import CAUSAL, ENCODER_DECODER, FAMILIES
from torch import Tensor, nn

from apood.encoders.base.hidden import LayerReader, StackSearch
from apood.encoders.base.layers import Layers, check_layers, resolve_layers
from apood.encoders.opening import reopen_encoder
from apood.encoders.text.encoder import TextEncoder
from apood.support.errors import InputError
from apood.tokens.identity import same_encoder

Models = Callable[[str], Path]

NAMES: list[tuple[Any, str]] = [
    (-1, "-1"), ("-1", "-1"), (6, "6"), (-2, "5"), (-7, "0"), (0, "0"), (np.int64(3), "3"), (" 3 ", "3"),
    ("mix", "mix"), ([1, 2, 3, 4, 5, 6], "mix"), ("mix:6,5,4,3,2,1", "mix"), (range(1, 7), "mix"), ("mix:-1", "mix:6"),
    ([4], "mix:4"), ((5, 2, 2, -5), "mix:2,5"), ("mix: 2, 5", "mix:2,5"), (np.array([0, 3]), "mix:0,3"),
    ("mix:0,1,2,3,4,5,6", "mix:0,1,2,3,4,5,6"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "name"), NAMES)
def test_every_choice_has_one_name_which_names_it_again(given: Any, name: str) -> None:
    found = resolve_layers(given, "encoder", 6, "a model")
    assert str(found) == name
    assert resolve_layers(name, "encoder", 6, "a model") == found


@pytest.mark.parametrize(
    ("kind", "name"), [("causal", "mix"), ("encoder", "mix"), ("classifier", "mix"), ("encoder-decoder", "-1")]
)
def test_auto_follows_from_the_kind_of_model(kind: Any, name: str) -> None:
    assert str(resolve_layers("auto", kind, 6, "a model")) == name


@pytest.mark.parametrize("mode", ["output", "reference"])
@pytest.mark.parametrize("kind", ["causal", "encoder-decoder"])
def test_auto_is_the_mix_for_what_a_decoder_makes(kind: Any, mode: str) -> None:
    assert str(resolve_layers("auto", kind, 6, "a model", mode)) == "mix"
    assert str(resolve_layers("-1", kind, 6, "a model", mode)) == "-1"


@pytest.mark.parametrize(
    "given",
    [
        True, 1.0, None, [], (), [True], [1.5], ["1"], [1, None], "", "last", "Mix", "mix:", "mix:a", "mix:1,,2",
        "mix:1.5", "1,2", "auto:1", ":1", "mix:1:2", "1" * 5000, "mix:" + "9" * 5000, 10**5000, [10**5000], b"mix",
        {1: 2}, {1, 2}, float("nan"), np.array(2.5), np.array([[1, 2]]),
    ],
    ids=lambda given: type(given).__name__,
)  # fmt: skip
def test_names_that_name_no_layers_are_refused_in_one_sentence(given: Any) -> None:
    with pytest.raises(InputError, match=r"^layers must be auto, mix, the number of a layer, .*mix:4,5,6") as error:
        check_layers(given)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("given", [7, -8, "7", [1, 7], "mix:1,-8"])
def test_layers_that_a_model_lacks_are_refused_with_the_allowed_range(given: Any) -> None:
    with pytest.raises(InputError, match=r"^Layer (7|-8) of 'a model' does not exist: allowed are -7 to 6\.$"):
        resolve_layers(given, "encoder", 6, "a model")


def test_a_model_without_layers_cannot_be_mixed() -> None:
    with pytest.raises(InputError, match="no layers but its embeddings"):
        resolve_layers("mix", "encoder", 0, "a model")


def test_bad_layers_are_refused_before_the_model_is_looked_for() -> None:
    with pytest.raises(InputError, match="layers must be auto"):
        TextEncoder("no-such-model", layers="all")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_default_is_in_the_identity(models: Models, family: str) -> None:
    wanted = "-1" if family in ENCODER_DECODER else "mix"
    found = TextEncoder(models(family), device="cpu").identity
    assert found["layers"] == wanted
    assert same_encoder(found, TextEncoder(models(family), layers=wanted, device="cpu").identity)


@pytest.mark.parametrize("layer", [-1, 2])
def test_an_identity_with_one_layer_opens_an_encoder_of_that_layer(models: Models, layer: int) -> None:
    """Identities that were written before layers could be mixed have the key `layer`."""
    today = TextEncoder(models("bert"), layers=layer, device="cpu").identity
    old = {("layer" if key == "layers" else key): (layer if key == "layers" else value) for key, value in today.items()}
    assert same_encoder(old, today)
    opened = reopen_encoder(old, device="cpu").identity
    assert opened["layers"] == str(layer)
    assert not same_encoder(old, TextEncoder(models("bert"), device="cpu").identity)


def test_layers_of_the_same_numbers_are_the_same_encoder(models: Models) -> None:
    identities = [TextEncoder(models("bert"), layers=layers, device="cpu").identity for layers in ("mix", [3, 1, 2])]
    assert same_encoder(*identities)
    assert not same_encoder(identities[0], TextEncoder(models("bert"), layers=[1, 2], device="cpu").identity)


@pytest.mark.parametrize("layers", ["mix", "mix:0,2", 0, 1, 3])
@pytest.mark.parametrize(
    ("family", "mode"),
    [
        *((family, mode) for family in (*CAUSAL, *ENCODER_DECODER) for mode in ("input", "output")),
        *((family, "input") for family in ("bert", "bert_classifier", "roberta", "distilbert", "modern_bert")),
    ],
)
def test_no_pass_is_asked_for_the_states_of_all_layers(
    models: Models, texts: list[str], family: str, mode: Any, layers: Any
) -> None:
    depth = 2 if mode == "output" and family in ("bart", "marian", "pegasus") else 3
    encoder = TextEncoder(models(family), mode=mode, layers=depth if layers == 3 else layers, max_new_tokens=4)
    model, asked = encoder._pass.model.model, []

    def note(_module: Any, _inputs: Any, options: dict[str, Any]) -> None:
        asked.append(options.get("output_hidden_states"))

    for module in model.modules():
        module.register_forward_pre_hook(note, with_kwargs=True)
    encoder.encode(texts[:5])
    assert asked and not any(asked)


def test_a_model_whose_layers_are_one_module_returns_all_of_them(models: Models) -> None:
    encoder = TextEncoder(models("albert"), layers="mix", device="cpu")
    assert encoder._pass.model._reader.needs_all
    assert not TextEncoder(models("albert"), layers=-1, device="cpu")._pass.model._reader.needs_all


@pytest.mark.parametrize("family", ["bert", "llama", "t5", "bert_classifier"])
def test_mixed_states_do_not_depend_on_neighbours(models: Models, texts: list[str], family: str) -> None:
    encoder = TextEncoder(models(family), layers="mix", device="cpu")
    together = encoder.encode(texts[:40])
    for index in (0, 7, 39):
        alone = encoder.encode([texts[index]])
        torch.testing.assert_close(together.sequence(index), alone.values, atol=1e-6, rtol=1e-5)


def test_half_precision_states_are_added_in_float32(models: Models, texts: list[str]) -> None:
    exact = TextEncoder(models("llama"), layers="mix", device="cpu").encode(texts[:20])
    for dtype, most in ((torch.float16, 0.01), (torch.bfloat16, 0.05), (torch.float64, 1e-5)):
        found = TextEncoder(models("llama"), layers="mix", device="cpu", dtype=dtype).encode(texts[:20])
        assert found.dtype == dtype
        assert float((found.values.double() - exact.values.double()).norm() / exact.values.norm()) < most


class _Residual(nn.Module):
    """A layer, which returns more than its states, as many do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, states: Tensor) -> tuple[Tensor, str]:
        return states + self.inner(states), "something else"


class _Model(nn.Module):
    """Three layers and a final norm, beside a list of modules that are not layers."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.others = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
            self.layers = nn.ModuleList([_Residual() for _ in range(3)])
        self.fails = False
        self.waits: threading.Barrier | None = None

    def forward(self, states: Tensor) -> tuple[Tensor, list[Tensor]]:
        hidden = [states]
        for layer, other in zip(self.layers, self.others, strict=True):
            other(states)
            states, _ = layer(states)
            if self.fails:
                raise RuntimeError("out of memory")
            if self.waits is not None:
                self.waits.wait(10)
            hidden.append(states)
        return states.tanh(), [*hidden[:-1], states.tanh()]

    def find_reader(self, layers: Layers) -> LayerReader:
        search = StackSearch(self)
        with search.watch():
            last, hidden = self(torch.ones(1, 2, 4))
        return search.find(layers, last, hidden)

    @property
    def hooks(self) -> int:
        return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in self.modules())


MIX = Layers((1, 2, 3), True, 3)


def read(model: _Model, reader: LayerReader, states: Tensor) -> Tensor:
    with torch.inference_mode():
        with reader.watch() as finish:
            last, hidden = model(states)
        return finish(last, hidden if reader.needs_all else None)


@pytest.mark.parametrize(
    "layers", [MIX, Layers((0, 3), True, 3), Layers((0,), False, 3), Layers((2,), False, 3), Layers((3,), False, 3)]
)
def test_hooks_give_what_the_states_of_all_layers_give(layers: Layers) -> None:
    model, states = _Model(), torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1))
    reader = model.find_reader(layers)
    assert not reader.needs_all
    assert LayerReader(layers).needs_all
    torch.testing.assert_close(read(model, reader, states), read(model, LayerReader(layers), states))
    assert model.hooks == 0


def test_states_of_length_zero_stay_zero() -> None:
    model = _Model()
    for layer in model.layers:
        layer.inner.bias.data.zero_()
    assert torch.equal(read(model, model.find_reader(MIX), torch.zeros(1, 2, 4)), torch.zeros(1, 2, 4))


def test_one_buffer_is_all_that_a_pass_keeps() -> None:
    model, alive = _Model(), []
    reader = model.find_reader(MIX)
    with torch.inference_mode(), reader.watch() as finish:
        capture = finish.__closure__  # type: ignore[attr-defined]
        last, _ = model(torch.ones(2, 5, 4))
        for cell in capture:
            held = vars(cell.cell_contents) if hasattr(cell.cell_contents, "__dict__") else {}
            alive += [value for value in held.values() if isinstance(value, Tensor)]
        assert [tuple(value.shape) for value in alive] == [(2, 5, 4)]
        assert alive[0].dtype == torch.float32
        assert finish(last, None).data_ptr() == alive[0].data_ptr()


def test_hooks_are_removed_after_an_error() -> None:
    model = _Model()
    reader = model.find_reader(MIX)
    model.fails = True
    with pytest.raises(RuntimeError, match="out of memory"):
        read(model, reader, torch.ones(1, 2, 4))
    search = StackSearch(model)
    with pytest.raises(RuntimeError, match="out of memory"), search.watch():
        model(torch.ones(1, 2, 4))
    assert model.hooks == 0
    model.fails = False
    assert read(model, reader, torch.ones(1, 2, 4)).shape == (1, 2, 4)


def test_passes_of_two_threads_do_not_mix() -> None:
    model = _Model()
    reader = model.find_reader(MIX)
    inputs = [torch.full((1, 2, 4), value) for value in (1.0, -2.0)]
    expected = [read(model, reader, states) for states in inputs]
    model.waits = threading.Barrier(2)  # both threads are inside the model, layer by layer
    found: dict[int, Tensor] = {}

    def run(number: int) -> None:
        found[number] = read(model, reader, inputs[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for number in range(2):
        assert torch.equal(found[number], expected[number])
    assert model.hooks == 0


def test_layers_that_do_not_show_the_states_of_the_model_are_not_used() -> None:
    class Skewed(_Model):
        def forward(self, states: Tensor) -> tuple[Tensor, list[Tensor]]:
            last, hidden = super().forward(states)
            return last, [hidden[0], hidden[1] + 1, *hidden[2:]]

    model = Skewed()
    reader = model.find_reader(MIX)
    assert reader.needs_all
