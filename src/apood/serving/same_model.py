"""Whether a model in memory is the one that a detector was fitted for, as far as that can be told."""

from pathlib import Path
from typing import Any

from apood.encoders.base.fingerprint import fingerprint, weight_files
from apood.encoders.text.encoder import generation_files
from apood.encoders.text.states import Mode
from apood.support.errors import InputError
from apood.tokens.identity import EncoderIdentity, describe_encoder

__all__ = ["refuse_other_model"]


def refuse_other_model(model: Any, identity: EncoderIdentity) -> None:
    """Refuses a model that comes from other files than the detector's encoder did.

    A model that was loaded from a folder is known by the folder's fingerprint, one from the hub by its name and
    revision. Of a model that was made in memory, nothing is known but its shape.
    """
    folder = Path(model.name_or_path or "")
    name, revision = identity.get("model"), identity.get("revision")
    if model.name_or_path and (folder / "config.json").is_file() and weight_files(folder):
        mode: Mode = "output" if identity.get("mode") == "output" else "input"
        known = identity.get("fingerprint")
        other = known is not None and fingerprint(folder, *generation_files(folder, mode)) != known
    else:
        commit = getattr(model.config, "_commit_hash", None)
        other = None not in (commit, revision) and (model.name_or_path, commit) != (name, revision)
    if other:
        raise InputError(
            f"The detector was fitted on tokens from {describe_encoder(identity)}, and the model from "
            f"{model.name_or_path!r} is another one: guard the model that it was fitted for, or fit it again."
        )
