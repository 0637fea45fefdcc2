"""Arguments: values of `--set` are read by the annotations of a constructor."""

from typing import Literal

import pytest

from apood.cli.arguments import default_parameters, format_parameter, parse_settings
from apood.detectors.contract.base import Detector
from apood.detectors.contract.registry import METHODS, detector_class
from apood.support.errors import InputError


class Sample(Detector):
    """A detector with parameters of every kind."""

    name = "sample"

    def __init__(
        self,
        count: int = 1,
        rate: float | None = None,
        flag: bool = False,
        kind: Literal["one", "none"] | None = "one",
        heads: int | Literal["auto"] = "auto",
        label: str | None = "x",
    ) -> None:
        self.count = count
        self.rate = rate
        self.flag = flag
        self.kind = kind
        self.heads = heads
        self.label = label


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("count=3", 3),
        ("rate=2", 2.0),
        ("rate=1e-3", 0.001),
        ("rate=none", None),
        ("flag=true", True),
        ("flag=False", False),
        ("kind=one", "one"),
        ("kind=none", "none"),  # a choice of that name goes before None
        ("kind=null", None),
        ("heads=auto", "auto"),
        ("heads=12", 12),
        ("label=a=b", "a=b"),
        ("label=7", "7"),
        ("label=", ""),
        ("label=none", None),
    ],
)
def test_values_are_read_by_their_annotation(setting, value):
    parsed = parse_settings(Sample, [setting])[setting.partition("=")[0]]
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("count=1.5", "count must be a whole number, got '1.5'."),
        ("rate=much", "rate must be a number or null, got 'much'."),
        ("flag=maybe", "flag must be true or false, got 'maybe'."),
        ("kind=two", "kind must be one or none or null, got 'two'."),
        ("heads=all", "heads must be a whole number or auto, got 'all'."),
        ("other=1", "count=1, rate=null, flag=false, kind=one, heads=auto, label=x."),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_is_allowed(setting, sentence):
    with pytest.raises(InputError) as refusal:
        parse_settings(Sample, [setting])
    assert str(refusal.value).endswith(sentence)


class Unsaid(Detector):
    """A detector from elsewhere whose constructor does not say of what kind its parameter is."""

    name = "unsaid"

    def __init__(self, k=5):
        self.k = k


class Unfinished(Detector):
    """A detector from elsewhere with an annotation that is no Python."""

    name = "unfinished"

    def __init__(self, k: "an integer" = 5) -> None:  # noqa: F722
        self.k = k


class Unreadable(Detector):
    """A detector from elsewhere with an annotation that names nothing."""

    name = "unreadable"

    def __init__(self, k: "Nothing" = 5) -> None:  # noqa: F821
        self.k = k


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (Unsaid, "'k' of unsaid .* annotate it, as in `k: int`"),
        (Unreadable, "unreadable has an annotation .*Nothing"),
        (Unfinished, "unfinished has an annotation that cannot be read"),
    ],
)
def test_a_constructor_that_does_not_say_what_a_parameter_is_is_named(method, sentence):
    with pytest.raises(InputError, match=sentence):
        parse_settings(method, ["k=3"])
    assert parse_settings(method, []) == {}  # without --set, nothing needs to be known


@pytest.mark.parametrize("method", METHODS)
def test_every_default_can_be_set_to_itself(method):
    own = default_parameters(detector_class(method))
    settings = [f"{name}={format_parameter(value)}" for name, value in own.items()]
    assert parse_settings(detector_class(method), settings) == own
