"""The examples in the docstrings of encoders run, with tiny models."""

import doctest
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_audio import make_audio_model

from apood.encoders.audio.encoder import AudioEncoder
from apood.encoders.text.encoder import TextEncoder


@pytest.mark.parametrize("encoder", [TextEncoder, AudioEncoder])
def test_examples_of_encoders(models: Callable[[str], Path], tmp_path: Path, encoder: type) -> None:
    folder = models("bert") if encoder is TextEncoder else make_audio_model(tmp_path / "audio")
    names = {"folder": folder, encoder.__name__: encoder}
    (example,) = doctest.DocTestFinder(recurse=False).find(encoder, encoder.__name__, globs=names)
    result = doctest.DocTestRunner().run(example)
    assert result.attempted > 0 and result.failed == 0
