"""The version of apood, also known if it runs from its source tree without being installed."""

__all__ = ["__version__"]

__version__ = "0.1.0"
