"""The public names: locked, importable, and free until they are used."""

import subprocess
import sys
from importlib.metadata import version

import pytest

import apood

NAMES = [
    "APOOD",
    "KNN",
    "MSP",
    "BinaryLogits",
    "Checkpoint",
    "Coherence",
    "DeepSAD",
    "DeepSVDD",
    "Detector",
    "DriftAlarm",
    "Energy",
    "Entropy",
    "Fusion",
    "Length",
    "Mahalanobis",
    "MahalanobisKNN",
    "Perplexity",
    "RelativeMahalanobis",
    "RemoteEncoder",
    "TextDetector",
    "TextEncoder",
    "TokenBatch",
    "TokenStore",
    "TokenStoreWriter",
    "Trusted",
    "__version__",
    "attention_pool",
    "audit",
    "default_detector",
    "guard",
    "load",
]


def test_the_public_names_are_these():
    assert apood.__all__ == NAMES
    assert dir(apood) == sorted(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "__version__"])
def test_every_name_is_the_thing_of_that_name(name):
    found = getattr(apood, name)
    assert found.__name__ == name and found.__module__.startswith("apood.")


def test_the_version_is_that_of_the_installed_package():
    assert apood.__version__ == version("apood")


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="module 'apood' has no attribute 'Apood'"):
        apood.Apood  # noqa: B018
    with pytest.raises(ImportError):
        from apood import nothing  # noqa: F401


def test_import_costs_nothing():
    code = """
import sys
import apood
heavy = [name for name in ("torch", "numpy", "sklearn", "transformers") if name in sys.modules]
assert not heavy, heavy
from apood import load
assert "torch" in sys.modules and "transformers" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
