"""`apood serve`."""

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apood.cli.options import EncoderFolder
from apood.cli.output import echo
from apood.data.conversations import Chat, OtherParts
from apood.serving.http.settings import OnError, Settings
from apood.support.checks import import_optional
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.serving.http.service import Service

__all__ = [
    "DEFAULTS",
    "LONGEST_DEADLINE",
    "ChatOption",
    "Deadline",
    "DetectorFolder",
    "Host",
    "MostBytes",
    "MostTextTokens",
    "MostTokens",
    "OnErrorOption",
    "OtherPartsOption",
    "Port",
    "Shadow",
    "TokensFile",
    "find_tokens",
    "make_service",
    "serve",
]

_TOKENS = "APOOD_TOKENS"  # the environment variable with access tokens, one per line

DEFAULTS = Settings()
"""The settings of a service for which no options are given."""

LONGEST_DEADLINE = 86_400
"""The largest deadline that can be set: a day."""

# Options that `apood proxy` has, too.
DetectorFolder = Annotated[str, typer.Argument(metavar="DETECTOR", help="Folder of a calibrated detector.")]
Host = Annotated[str, typer.Option(help="Address to bind to. Any other than this machine's own needs --tokens.")]
TokensFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File of access tokens, one per line, of which clients must send one; or the environment variable "
        f"{_TOKENS}.",
    ),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any that is free.")]
Shadow = Annotated[
    bool, typer.Option("--shadow", help="Refuse nothing that can be read, and count what would be refused.")
]
OnErrorOption = Annotated[
    OnError,
    typer.Option(
        help="Whether to refuse or accept an input that cannot be judged because of an error, a full queue or a missed "
        "deadline."
    ),
]
ChatOption = Annotated[
    Chat | None,
    typer.Option(help="Which text of a conversation is judged.", show_default="that of `apood build`, or last-user"),
]
OtherPartsOption = Annotated[
    OtherParts,
    typer.Option(
        help="refuse: a judged message may not have images, sounds or files. ignore: these parts pass unjudged."
    ),
]
Deadline = Annotated[
    float, typer.Option(min=0.01, max=LONGEST_DEADLINE, help="Seconds after which a request is answered with 504.")
]
MostBytes = Annotated[int, typer.Option(min=1, metavar="BYTES", help="Largest body of a request.")]
MostTextTokens = Annotated[int, typer.Option(min=1, help="Largest number of tokens of a text.")]
MostTokens = Annotated[int, typer.Option(min=1, help="Largest number of tokens in flight, of all requests together.")]


def serve(
    detector_folder: DetectorFolder,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    tokens: TokensFile = None,
    shadow: Shadow = DEFAULTS.shadow,
    on_error: OnErrorOption = DEFAULTS.on_error,
    chat: ChatOption = None,
    other_parts: OtherPartsOption = "refuse",
    model: EncoderFolder = None,
    deadline: Deadline = DEFAULTS.deadline,
    max_body: MostBytes = DEFAULTS.most_bytes,
    max_texts: Annotated[int, typer.Option(min=1, help="Largest number of texts of a request.")] = DEFAULTS.most_texts,
    max_text_tokens: MostTextTokens = DEFAULTS.most_text_tokens,
    max_tokens: MostTokens = DEFAULTS.most_tokens,
) -> None:
    """Serve a detector over HTTP: POST texts to /v1/score, and read decisions.

    Requests that arrive together share batches. A full service answers 429, and a missed deadline 504. SIGTERM finishes
    what was accepted; SIGHUP loads the detector again, without losing a request. Inputs are neither stored nor logged.
    """
    settings = Settings(deadline, max_body, max_texts, max_text_tokens, max_tokens, shadow, on_error)
    known = find_tokens(tokens)
    service = make_service(detector_folder, model, chat, settings, host, known)
    from apood.serving.http.access import is_loopback
    from apood.serving.http.app import make_app
    from apood.serving.http.server import run_server

    app = make_app(service, known, local=is_loopback(host), other_parts=other_parts)
    run_server(
        app,
        service,
        host,
        port,
        longest=deadline,
        report=lambda address: echo(f"Serving {detector_folder} (ready when /readyz answers 204) at {address}"),
    )


def find_tokens(file: Path | None) -> tuple[str, ...]:
    """Return the access tokens of a file, or of the environment."""
    from apood.serving.http.access import read_tokens
    from apood.support.files import read_text

    if file is None:
        return read_tokens(os.environ.get(_TOKENS, ""))
    try:
        content = read_text(file)
    except ValueError as error:
        raise InputError(f"The file of access tokens {file} cannot be read: {error}.") from error
    tokens = read_tokens(content)
    if not tokens:
        raise InputError(f"{file} holds no access token: write one per line.")
    return tokens


def make_service(
    folder: str, model: str | None, chat: Chat | None, settings: Settings, host: str, tokens: tuple[str, ...]
) -> "Service":
    """Return the service of the detector in `folder`. Everything that can be wrong is checked before it is started."""
    for module in ("fastapi", "httpx2", "prometheus_client", "uvicorn"):
        import_optional(module, "serve", "Serving over HTTP")
    from apood.serving.http.access import check_exposure
    from apood.serving.http.served import load_served
    from apood.serving.http.service import Service

    check_exposure(host, tokens)
    logging.basicConfig(format="%(message)s")  # warnings and errors of all libraries
    logging.getLogger("apood").setLevel(logging.INFO)
    first = [load_served(folder, model, chat)]  # an error here ends the command with one sentence
    return Service(lambda: first.pop() if first else load_served(folder, model, chat), settings)
