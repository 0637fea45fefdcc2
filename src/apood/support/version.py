"""The version of apood, known also where it runs from its source tree and is not installed."""

__all__ = ["__version__"]

__version__ = "0.1.0"
