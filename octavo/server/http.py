"""HTTP as uvicorn speaks it for Octavo: the port, the connection's own habits, certificates."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from octavo.core.errors import ConfigurationError
from octavo.server.protocol import BoundedHttpProtocol
from octavo.server.settings import ServerSettings


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    return uvicorn.Config(app="", log_config=None).get_loop_factory()


def listen(settings: ServerSettings) -> socket.socket:
    """
    Raises:
        ConfigurationError: the port is taken, or the host is none of this machine's.
    """
    host, port = settings.listen_host, settings.port
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ConfigurationError(
            f"Cannot listen on {host} port {port}: {reason}. Choose another with --host or --port."
        ) from None


class HttpServer(uvicorn.Server):
    """Signals are handled by ServerRun: the engine drains first, HTTP stops after it."""

    def reload_certificate(self) -> None:
        """Connections that are made from now on get the certificate that is in the file now.

        Raises:
            OSError: there is no usable one; the former stays.
        """
        if self.config.ssl is not None:
            pair = str(self.config.ssl_certfile), self.config.ssl_keyfile
            # A certificate without its key would take the place of the former before it is found out.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*pair)
            self.config.ssl.load_cert_chain(*pair)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_config(app: ASGIApp, settings: ServerSettings) -> uvicorn.Config:
    """
    Raises:
        ConfigurationError: the certificate cannot be used.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # its start and stop are told in Octavo's words
    limit = settings.limits.header_bytes
    protocol = type("HttpProtocol", (BoundedHttpProtocol,), {"max_header_bytes": limit})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,  # the process's own logging
        access_log=False,  # octavo/server/access/gate.py writes one, without what may hold keys
        server_header=False,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,  # what is left by then has been told to end
    )
    try:
        config.load()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"cannot use the certificate {settings.ssl_certfile}: {reason}") from error
    return config
