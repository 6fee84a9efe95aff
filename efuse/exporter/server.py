# SPDX-License-Identifier: LGPL-2.1-or-later
"""Metrics over HTTP."""

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
    """Where to listen.

    :ivar host: a name or an address; 0.0.0.0: every one of this machine, of IPv4.
    :ivar port: of TCP; 0: one that is free.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the address that a person typed: ``HOST:PORT``, ``:PORT`` or ``[IPV6]:PORT``.

        :raises UsageError: it is none.
        """
        host, colon, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        good = colon and port.isascii() and port.isdecimal() and int(port) < 1 << 16
        if not good or (":" in bare and host != f"[{bare}]"):
            raise UsageError(
                f"{text!r} is no address to listen on (EINVAL)",
                hint="HOST:PORT, as 127.0.0.1:9435 or [::1]:9435",
            )
        return cls(bare or "0.0.0.0", int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Http(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Leave a scraper alone that did not wait for its answer; it says so itself."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Server(Closing):
    """Answers each GET with the metrics of a registry, from when it is made until it is closed.

    :param address: to listen on.
    :raises EfuseError: nobody can listen there.
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
        """Stop answering. May be called again."""
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def serve(address: Address, registry: CollectorRegistry, say: Callable[[str], None]) -> None:
    """Answer until SIGINT or SIGTERM comes.

    :param say: is called with the URL once it can be asked for.
    :raises EfuseError: nobody can listen there.
    """
    # Blocked before the server's threads are made: so nobody but sigwait() takes them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        with Server(address, registry) as server:
            say(server.url)
            signal.sigwait(_ENDING)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
