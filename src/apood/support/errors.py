"""The exceptions and warnings of apood. Every message says what was given, where, and what is allowed."""

__all__ = [
    "ApoodError",
    "ArtefactError",
    "CloudError",
    "DataWarning",
    "DivergedWarning",
    "FitWarning",
    "InputError",
    "NotCalibratedError",
    "ServerError",
    "StoreError",
]


class ApoodError(Exception):
    """The base of all errors that apood raises on purpose."""


class InputError(ApoodError, ValueError):
    """An argument or data that cannot be used."""


class NotCalibratedError(ApoodError, RuntimeError):
    """A decision by a detector that has no threshold yet."""


class ServerError(ApoodError):
    """A model server that does not give the tokens that it is asked for."""


class CloudError(ApoodError):
    """An address in a cloud store that cannot be read or written."""


class StoreError(ApoodError):
    """A token store that cannot be read, written or resumed."""


class ArtefactError(ApoodError):
    """A saved detector or checkpoint that cannot be read or written."""


class FitWarning(UserWarning):
    """A fit whose scores should not be trusted."""


class DivergedWarning(FitWarning):
    """A fit that stopped because its loss was no longer finite."""


class DataWarning(UserWarning):
    """Data of which only a part could be used."""
