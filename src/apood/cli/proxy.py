"""`apood proxy`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from apood.cli.output import echo
from apood.cli.serve import TOKENS_VARIABLE, find_tokens, open_service

__all__ = ["proxy"]


def proxy(
    detector_folder: Annotated[Path, typer.Argument(metavar="DETECTOR", help="Folder of a calibrated detector.")],
    upstream: Annotated[str, typer.Option(metavar="URL", help="The server behind, which speaks the OpenAI protocol.")],
    chat: Annotated[
        Literal["last-user", "all-user", "whole"] | None,
        typer.Option(
            help="Which text of a conversation is judged.", show_default="that of `apood build`, or last-user"
        ),
    ] = None,
    other_parts: Annotated[
        Literal["refuse", "ignore"], typer.Option(help="What becomes of messages with images, sounds or files.")
    ] = "refuse",
    refusal_text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Answer a refused request with a completion that says this.",
            show_default="an error, code out_of_distribution",
        ),
    ] = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Refuse nothing, and count what would be refused.")] = False,
    on_error: Annotated[
        Literal["refuse", "accept"],
        typer.Option(help="What becomes of an input that cannot be judged because of an error of the service."),
    ] = "refuse",
    host: Annotated[
        str, typer.Option(help="Address to bind to. Any other than this machine's own needs --tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any that is free.")] = 8001,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of tokens, one per line, for the header x-apood-token; or the environment variable "
            f"{TOKENS_VARIABLE}.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="FOLDER", help="Folder of the encoder, if it has moved.")] = None,
    deadline: Annotated[float, typer.Option(min=0.01, help="Seconds after which judging is given up.")] = 10,
    upstream_timeout: Annotated[
        float, typer.Option(min=0.01, help="Seconds to wait for the next bytes of the server behind.")
    ] = 600,
    max_body: Annotated[int, typer.Option(min=1, metavar="BYTES", help="Largest body of a request.")] = 1 << 23,
    max_text_tokens: Annotated[int, typer.Option(min=1, help="Largest number of tokens of a text.")] = 8192,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Largest number of tokens in flight, of all requests together.")
    ] = 1 << 18,
) -> None:
    """Guard a server that speaks the OpenAI protocol: judge inputs, and pass on what is in-distribution.

    Clients use the address of the proxy as their base URL. Chat completions, completions and responses are judged, also
    if they are streamed. A refused request never reaches the server behind. Answers are passed back unchanged, with
    headers x-apood-* that tell the decision. The list of models is passed on; all other paths are refused.
    """
    from apood.serving.http.service import Settings
    from apood.serving.proxy.upstream import check_upstream

    check_upstream(upstream)
    settings = Settings(
        deadline, max_body, most_text_tokens=max_text_tokens, most_tokens=max_tokens, shadow=shadow, on_error=on_error
    )
    known = find_tokens(tokens)
    service = open_service(detector_folder, model, chat, settings, host, known)
    from apood.serving.http.access import is_loopback
    from apood.serving.http.server import run_server
    from apood.serving.proxy.app import Rules, make_proxy
    from apood.serving.proxy.upstream import Upstream

    rules = Rules(other_parts, refusal_text)
    app = make_proxy(service, Upstream(upstream, upstream_timeout), rules, known, local=is_loopback(host))
    run_server(
        app,
        service,
        host,
        port,
        longest=deadline + upstream_timeout,
        report=lambda address: echo(f"Guarding {upstream} at {address}"),
    )
