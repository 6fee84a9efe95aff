# SPDX-License-Identifier: LGPL-2.1-or-later
"""Serve metrics over HTTP."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from typing import Self

from prometheus_client import CollectorRegistry, MetricsHandler

from efuse.closing import Closing
from efuse.errors import EfuseError, UsageError, reason

__all__ = ["Address", "Server", "serve"]

_ENDING = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Address:
    """Address to listen on.

    :ivar host: host name or address; 0.0.0.0 for all IPv4 addresses of this machine.
    :ivar port: TCP port; 0 for any free one.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the address that the user typed: ``HOST:PORT``, ``:PORT`` or ``[IPV6]:PORT``.

        :raises UsageError: *text* is not such an address.
        """
        host, colon, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        good = colon and port.isascii() and port.isdecimal() and int(port) < 1 << 16
        if not good or (":" in bare and host != f"[{bare}]"):
            raise UsageError(
                f"{text!r} is not an address to listen on (EINVAL)",
                hint="HOST:PORT, as 127.0.0.1:9435 or [::1]:9435",
            )
        return cls(bare or "0.0.0.0", int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Http(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a scraper that closed the connection before it got its answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Server(Closing):
    """Serve the metrics of a registry over HTTP until it is closed. A context manager.

    :param address: address to listen on.
    :param registry: registry whose metrics are served.
    :raises EfuseError: the address cannot be used.
    """

    def __init__(self, address: Address, registry: CollectorRegistry) -> None:
        try:
            family, _, _, _, where = socket.getaddrinfo(
                address.host,
                address.port,
                type=socket.SOCK_STREAM,
                flags=socket.AI_PASSIVE,
            )[0]
            kind = type("_Listening", (_Http,), {"address_family": family})
            self._http: ThreadingHTTPServer = kind(where, MetricsHandler.factory(registry))
        except socket.gaierror as error:
            raise EfuseError(
                f"cannot listen on {address}: {error.strerror}", hint="use --listen with an address"
            ) from error
        except OSError as error:
            raise EfuseError(
                f"cannot listen on {address}: {reason(error)}",
                hint="use --listen with another address or port",
            ) from error
        self._thread = threading.Thread(target=self._http.serve_forever, name="exporter")
        self.url = f"http://{Address(address.host, self._http.server_port)}/metrics"
        self._thread.start()

    def close(self) -> None:
        """Stop serving. Further calls do nothing."""
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def serve(address: Address, registry: CollectorRegistry, say: Callable[[str], None]) -> None:
    """Serve metrics until SIGINT or SIGTERM arrives.

    :param address: address to listen on.
    :param registry: registry whose metrics are served.
    :param say: function that is called with the URL as soon as it works.
    :raises EfuseError: the address cannot be used.
    """
    # Block the signals before the server starts its threads, so that only sigwait() receives them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        with Server(address, registry) as server:
            say(server.url)
            signal.sigwait(_ENDING)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
