"""`apood proxy`."""

from typing import Annotated

import typer

from apood.cli.options import EncoderFolder
from apood.cli.output import echo
from apood.cli.serve import (
    DEFAULTS,
    LONGEST_DEADLINE,
    ChatOption,
    Deadline,
    DetectorFolder,
    Host,
    MostBytes,
    MostTextTokens,
    MostTokens,
    OnErrorOption,
    OtherPartsOption,
    Port,
    Shadow,
    TokensFile,
    find_tokens,
    make_service,
)
from apood.serving.http.settings import Settings

__all__ = ["proxy"]


def proxy(
    detector_folder: DetectorFolder,
    upstream: Annotated[
        str, typer.Option(metavar="URL", help="The server to guard, which speaks the OpenAI protocol.")
    ],
    chat: ChatOption = None,
    other_parts: OtherPartsOption = "refuse",
    refusal_text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Answer a refused request with a completion that says this.",
            show_default="an error, code out_of_distribution",
        ),
    ] = None,
    shadow: Shadow = DEFAULTS.shadow,
    on_error: OnErrorOption = DEFAULTS.on_error,
    host: Host = "127.0.0.1",
    port: Port = 8001,
    tokens: TokensFile = None,
    model: EncoderFolder = None,
    deadline: Deadline = DEFAULTS.deadline,
    upstream_timeout: Annotated[
        float, typer.Option(min=0.01, max=LONGEST_DEADLINE, help="Seconds to wait for the next bytes of that server.")
    ] = 600,
    max_body: MostBytes = 1 << 23,
    max_text_tokens: MostTextTokens = DEFAULTS.most_text_tokens,
    max_tokens: MostTokens = DEFAULTS.most_tokens,
) -> None:
    """Guard a server that speaks the OpenAI protocol: judge inputs, and pass on what is in-distribution.

    Clients use the address of the proxy as their base URL. Chat completions, completions and responses are judged, also
    if they are streamed. A refused request never reaches that server. Answers are passed back unchanged, with
    headers x-apood-* that tell the decision. The list of models is passed on; all other paths are refused.
    """
    from apood.serving.proxy.upstream import check_upstream

    check_upstream(upstream)
    settings = Settings(
        deadline, max_body, most_text_tokens=max_text_tokens, most_tokens=max_tokens, shadow=shadow, on_error=on_error
    )
    known = find_tokens(tokens)
    service = make_service(detector_folder, model, chat, settings, host, known)
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
