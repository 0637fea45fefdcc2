"""Where commands write a detector."""

from pathlib import Path

from apood.support.errors import InputError
from apood.support.files import recover_folder

__all__ = ["refuse_occupied"]


def refuse_occupied(target: Path, force: bool) -> None:
    """Only a detector may be replaced, and only on purpose: it may have been given a threshold since."""
    from apood.detectors.contract.artefact import refuse_foreign

    recover_folder(target)
    refuse_foreign(target)
    if not force and target.is_dir() and any(target.iterdir()):
        raise InputError(f"There is already a detector in {target}: choose another folder, or replace it with --force.")
