"""Requests to a service elsewhere, to whichever of its addresses answers."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

from hicache_backends.errors import RegistryUnavailable
from kvmanager.http.endpoint import Address, HttpEndpoint

_REPEATABLE = ("GET", "PUT", "DELETE")
_ELSEWHERE = (500, 502, 503, 504)


class OverHttp:
    """A connection a request: a command makes few."""

    def __init__(self, urls: str, token: str | None, timeout_s: float) -> None:
        """Raises ConfigError."""
        self._endpoint = HttpEndpoint.parse(urls, token)
        self._timeout_s = timeout_s

    def request(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        """As `Transport.request`; the next address is asked where one does not answer, and that
        does no harm."""
        said: object = "no address"
        answer = None
        for address in self._endpoint:
            connection = self._connection(address)
            sent = False
            try:
                connection.connect()
                sent = True
                response = self._ask(connection, address, method, target, body)
                answer = response.status, response.read()
            except (OSError, http.client.HTTPException) as error:
                said = _told(address, error)
            finally:
                connection.close()
            if answer is not None and answer[0] not in _ELSEWHERE:
                return answer
            if sent and method not in _REPEATABLE:
                break
        if answer is not None:
            return answer
        raise RegistryUnavailable(f"no answer from {said}")

    def stream(self, target: str) -> tuple[int, Iterator[bytes]]:
        """As `Transport.stream`, from the first address that answers."""
        said: object = "no address"
        for address in self._endpoint:
            connection = self._connection(address)
            try:
                response = self._ask(connection, address, "GET", target, None)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                said = _told(address, error)
            else:
                return response.status, _lines(connection, response, address)
        raise RegistryUnavailable(f"no answer from {said}")

    def close(self) -> None:
        """Nothing is kept."""

    def _connection(self, address: Address) -> http.client.HTTPConnection:
        if address.tls:
            return http.client.HTTPSConnection(
                address.host, address.port, timeout=self._timeout_s, context=self._endpoint.tls
            )
        return http.client.HTTPConnection(address.host, address.port, timeout=self._timeout_s)

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        address: Address,
        method: str,
        target: str,
        body: bytes | None,
    ) -> http.client.HTTPResponse:
        headers = {"accept": "application/json"}
        if body is not None:
            headers["content-type"] = "application/json"
        for line in self._endpoint.headers(address).decode().splitlines():
            name, _, value = line.partition(": ")
            headers[name] = value
        connection.request(method, target, body, headers)
        return connection.getresponse()


def _lines(
    connection: http.client.HTTPConnection, response: http.client.HTTPResponse, address: Address
) -> Iterator[bytes]:
    try:
        yield from response
    except (OSError, http.client.HTTPException) as error:
        raise RegistryUnavailable(f"no more from {_told(address, error)}") from None
    finally:
        connection.close()


def _told(address: Address, error: Exception) -> str:
    return f"{address.shown}: {str(error) or type(error).__name__}"
