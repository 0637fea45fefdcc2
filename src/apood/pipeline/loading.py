"""Load what was saved: a detector alone, or a `TextDetector` with its encoder."""

from pathlib import Path

from apood.detectors.contract.base import Detector
from apood.pipeline.facts import load_detector_and_facts
from apood.pipeline.text_detector import TextDetector
from apood.support.errors import InputError

__all__ = ["load"]


def load(folder: str | Path, *, model: str | Path | None = None) -> Detector | TextDetector:
    """Return the `Detector` or `TextDetector` that `save` or a command wrote to `folder`.

    Loading opens no model. A `TextDetector` opens its encoder when it is first used, and SECURITY.md says what that can
    reach.

    Args:
        folder: the folder, which may be in a cloud store, as in `s3://bucket/detector`.
        model: the folder of the encoder's model if it has moved, for a `TextDetector`. It must be the same model.

    Raises:
        ArtefactError: if there is no detector, or it is incomplete, was changed, or is from a newer apood.

    Examples:
        >>> import tempfile
        >>> import apood
        >>> detector = apood.KNN(k=1).fit([[[0.0, 1.0]], [[1.0, 0.0]]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     detector.save(f"{folder}/knn")
        ...     print(apood.load(f"{folder}/knn"))
        KNN(k=1)
    """
    detector, facts = load_detector_and_facts(folder)
    if facts.text_settings is not None:
        return TextDetector.restore(detector, facts, folder, model)
    if model is not None:
        raise InputError(f"{folder} holds a detector of tokens, which opens no model: leave out model.")
    return detector
