"""Runs an application with uvicorn: SIGTERM finishes what was accepted, SIGHUP loads the detector again."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

from apood.serving.http.access import Asgi
from apood.serving.http.service import Service
from apood.support.errors import ApoodError, InputError

__all__ = ["run_server"]

_SPARE = 5  # seconds beyond the longest time of an answer, for those on their way
_PAUSE = 0.1  # seconds
_IDLE = 75  # seconds, more than the 60 for which reverse proxies keep a connection: they must not meet a closed one


def run_server(
    app: Asgi, service: Service, host: str, port: int, *, longest: float, report: Callable[[str], None] | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C; then accept nothing new, answer what was accepted, and return.

    A second Ctrl-C ends the server at once. Raise ApoodError if the service cannot be started.

    Args:
        app: the application of the service.
        service: the service.
        host: the address to bind to.
        port: its port; 0 for any that is free.
        longest: the seconds that an answer may take; after SIGTERM, those that take longer are cut.
        report: called with the address of the server as soon as it accepts connections.
    """
    asyncio.run(_serve(app, service, host, port, longest, report))
    if service.failed is not None:
        raise ApoodError(f"The detector could not be started: {service.failed}")


async def _serve(
    app: Asgi, service: Service, host: str, port: int, longest: float, report: Callable[[str], None] | None
) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leave the signals alone: uvicorn would raise them again at the end, as if the server had failed."""
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if report is not None and self.started:
                report(_describe_address(listening))

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            closing = asyncio.ensure_future(self._close_connections())
            try:
                await super().shutdown(sockets)
            finally:
                closing.cancel()

        async def _close_connections(self) -> None:
            """Close connections, or let their present answer be the last one, until the server ends.

            uvicorn does it once. One that is accepted at that moment would stay, and a client that goes on asking
            there would keep the server from ending.
            """
            while True:
                await asyncio.sleep(_PAUSE)
                for connection in list(self.server_state.connections):
                    if not connection.transport.is_closing():
                        connection.shutdown()

    config = uvicorn.Config(
        app,
        lifespan="on",
        log_level="warning",
        access_log=False,  # paths may hold what a client should not have put there
        server_header=False,
        date_header=True,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=int(longest) + _SPARE,
        ws="none",
    )
    server, listening = Server(config), _bind(host, port)
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[bool]] = set()

    def stop() -> None:
        server.should_exit = True

    def interrupt() -> None:
        server.force_exit = server.should_exit  # whoever presses Ctrl-C again does not want to wait
        server.should_exit = True

    def reload() -> None:
        task = loop.create_task(service.reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    service.on_failure = stop
    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGHUP, reload)
    await server.serve([listening])


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise InputError(f"The server cannot bind to {host}, port {port}: {error.strerror or error}.") from error
    return bound


def _describe_address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
