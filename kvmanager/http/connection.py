"""Connections to the service, kept alive, for threads."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from typing import Any

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryRefused, RegistryUnavailable
from kvmanager.connection import RECEIVE_BYTES, Channel, ChannelPool, Probed
from kvmanager.http import message as http_message
from kvmanager.http.endpoint import Address, HttpEndpoint
from kvmanager.http.message import Response, with_headers
from kvmanager.http.tries import Tries
from kvmanager.probe import Probe

RESTED_S = 1.0
"""After so long a connection is looked at before it is used again."""
_TIMEVAL = struct.Struct("@ll")


class HttpConnection:
    """A connection used by one thread at a time, to whichever address answers.

    A request is one send and one receive, with the kernel's timeouts: Python's would wait for the
    socket first, and give up the GIL once more for each.
    """

    def __init__(self, endpoint: HttpEndpoint, timeout_s: float, generation: int) -> None:
        """Raises RegistryUnavailable, RegistryRefused."""
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self.generation = generation
        self.clean = True
        self._stream: socket.socket | None = None
        self._address = endpoint.first
        self._used_s = 0.0
        self._connect_somewhere(Deadline.after_ms(timeout_s * 1000))

    def exchange(self, request: bytes, deadline: Deadline) -> bytes:
        """The whole response. Raises TimeoutError, OSError; close the connection after either."""
        self.clean = False
        tries = Tries(self._endpoint, request, deadline)
        while True:
            until = tries.begin()
            rested = self._usable()
            try:
                stream = self._stream or self._connect(self._endpoint.first, until)
                tries.sent = True
                response = self._once(stream, request, until)
            except OSError as error:
                self.close()
                tries.failed(self._address, error, rested=rested)
                continue
            if tries.enough(self._address, response):
                self.clean = True
                return response
            self.close()

    def probe(self, probe: Probe, deadline: Deadline) -> Probed:
        raise NotImplementedError("the service has no probes")  # `HttpWire.direct` says so

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _usable(self) -> bool:
        """Whether a connection from before is there, to the address that is the first now; one
        that the service closed is dropped."""
        stream = self._stream
        if stream is None:
            return False
        moved = self._address is not self._endpoint.first
        if moved or (time.monotonic() - self._used_s > RESTED_S and _ended(stream)):
            self.close()
        return self._stream is not None

    def _connect_somewhere(self, deadline: Deadline) -> None:
        refusal: Exception | None = None
        for address in self._endpoint:
            try:
                self._connect(address, deadline)
            except ssl.SSLCertVerificationError as error:
                refusal = RegistryRefused(f"{address.shown}: {error}")
            except OSError as error:
                refusal = refusal or RegistryUnavailable(f"{address.shown}: {error}")
            else:
                return
            self._endpoint.failed(address)
        raise refusal or RegistryUnavailable(f"{self._endpoint.shown}: no address")

    def _connect(self, address: Address, deadline: Deadline) -> socket.socket:
        self._address = address
        left_s = max(deadline.remaining_ms() / 1000, 0.001)
        stream = socket.create_connection(
            (address.host, address.port), timeout=min(left_s, self._timeout_s)
        )
        try:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                stream = self._endpoint.tls.wrap_socket(stream, server_hostname=address.host)
            else:
                stream.settimeout(None)
        except BaseException:
            stream.close()
            raise
        self._stream = stream
        return stream

    def _once(self, stream: socket.socket, request: bytes, deadline: Deadline) -> bytes:
        headers = self._endpoint.headers(self._address)
        left_ms = _limit(stream, deadline)
        said = b"%bdeadline-ms: %d\r\n" % (headers, max(1, int(left_ms)))
        response = Response()
        try:
            stream.sendall(with_headers(request, said))
            while not response.take(stream.recv(RECEIVE_BYTES)):
                _limit(stream, deadline)
        except BlockingIOError:
            raise TimeoutError("no answer by the deadline") from None
        self._used_s = time.monotonic()
        if response.closes:
            self.close()
        return bytes(response.raw)


class HttpPool(ChannelPool):
    """Connections to a service."""

    def __init__(self, endpoint: HttpEndpoint, connect_timeout_ms: float, keep: int = 16) -> None:
        super().__init__(connect_timeout_ms, keep)
        self.endpoint = endpoint

    @property
    def shown(self) -> str:
        return self.endpoint.shown

    def parse(self, raw: bytes) -> Any:
        return http_message.parse(raw)

    def _open(self, timeout_s: float, generation: int) -> Channel:
        return HttpConnection(self.endpoint, timeout_s, generation)


def _limit(stream: socket.socket, deadline: Deadline) -> float:
    left_ms = deadline.remaining_ms()
    if not left_ms:
        raise TimeoutError("no answer by the deadline")
    if isinstance(stream, ssl.SSLSocket):
        stream.settimeout(left_ms / 1000)
        return left_ms
    seconds, us = divmod(int(left_ms * 1000), 1_000_000)
    wait = _TIMEVAL.pack(seconds, max(us, 1))
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
    return left_ms


def _ended(stream: socket.socket) -> bool:
    """Whether the other side closed, or sent what nobody asked for."""
    try:
        if isinstance(stream, ssl.SSLSocket):
            stream.settimeout(0)
            stream.recv(1)
        else:
            stream.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True
    return True
