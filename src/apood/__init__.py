"""apood tells whether an input belongs to the distribution that a model was trained on, from its token embeddings.

The public names are imported when they are first used, so that `import apood` costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apood.decisions.drift import DriftAlarm
    from apood.detectors.ap_ood.detector import APOOD
    from apood.detectors.binary_logits import BinaryLogits
    from apood.detectors.coherence import Coherence
    from apood.detectors.contract.base import Detector
    from apood.detectors.deep_svdd import DeepSAD, DeepSVDD
    from apood.detectors.entropy import Entropy
    from apood.detectors.fusion import Fusion, default_detector
    from apood.detectors.knn import KNN, MahalanobisKNN
    from apood.detectors.length import Length
    from apood.detectors.logits import MSP, Energy
    from apood.detectors.mahalanobis import Mahalanobis
    from apood.detectors.perplexity import Perplexity
    from apood.detectors.relative_mahalanobis import RelativeMahalanobis
    from apood.detectors.trusted import Trusted
    from apood.encoders.remote.encoder import RemoteEncoder
    from apood.encoders.text.encoder import TextEncoder
    from apood.evaluation.audit import audit
    from apood.fitting.optimise import Checkpoint
    from apood.pipeline.loading import load
    from apood.pipeline.text_detector import TextDetector
    from apood.pooling import attention_pool
    from apood.serving.guard import guard
    from apood.support.version import __version__
    from apood.tokens.batch import TokenBatch
    from apood.tokens.store import TokenStore
    from apood.tokens.writer import TokenStoreWriter

__all__ = [
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

_HOMES = {
    "APOOD": "apood.detectors.ap_ood.detector",
    "KNN": "apood.detectors.knn",
    "MSP": "apood.detectors.logits",
    "BinaryLogits": "apood.detectors.binary_logits",
    "Checkpoint": "apood.fitting.optimise",
    "Coherence": "apood.detectors.coherence",
    "DeepSAD": "apood.detectors.deep_svdd",
    "DeepSVDD": "apood.detectors.deep_svdd",
    "Detector": "apood.detectors.contract.base",
    "DriftAlarm": "apood.decisions.drift",
    "Energy": "apood.detectors.logits",
    "Entropy": "apood.detectors.entropy",
    "Fusion": "apood.detectors.fusion",
    "Length": "apood.detectors.length",
    "Mahalanobis": "apood.detectors.mahalanobis",
    "MahalanobisKNN": "apood.detectors.knn",
    "Perplexity": "apood.detectors.perplexity",
    "RelativeMahalanobis": "apood.detectors.relative_mahalanobis",
    "RemoteEncoder": "apood.encoders.remote.encoder",
    "TextDetector": "apood.pipeline.text_detector",
    "TextEncoder": "apood.encoders.text.encoder",
    "TokenBatch": "apood.tokens.batch",
    "TokenStore": "apood.tokens.store",
    "TokenStoreWriter": "apood.tokens.writer",
    "Trusted": "apood.detectors.trusted",
    "__version__": "apood.support.version",
    "attention_pool": "apood.pooling",
    "audit": "apood.evaluation.audit",
    "default_detector": "apood.detectors.fusion",
    "guard": "apood.serving.guard",
    "load": "apood.pipeline.loading",
}

if not TYPE_CHECKING:  # a type checker that saw it would believe in every name

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
