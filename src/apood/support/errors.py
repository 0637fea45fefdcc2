"""The exceptions and warnings of apood.

Every message is one sentence that says what was given, where, and what is allowed.
"""

__all__ = [
    "ApoodError",
    "ArtefactError",
    "DataWarning",
    "DivergedWarning",
    "FitWarning",
    "InputError",
    "NotCalibratedError",
    "StoreError",
]


class ApoodError(Exception):
    """Base of every error that apood raises on purpose."""


class InputError(ApoodError, ValueError):
    """An argument or a piece of data that cannot be used."""


class NotCalibratedError(ApoodError, RuntimeError):
    """A decision was asked of a detector that has no threshold yet."""


class StoreError(ApoodError):
    """A token store that cannot be read, written or resumed."""


class ArtefactError(ApoodError):
    """A saved detector that cannot be read or written."""


class FitWarning(UserWarning):
    """Training ended in a state that the scores should not be trusted in."""


class DivergedWarning(FitWarning):
    """Training broke off because its loss was no longer finite."""


class DataWarning(UserWarning):
    """Data that was usable only in part."""
