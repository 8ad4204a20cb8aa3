"""Where one request goes, and where it goes next if that fails. Does no I/O."""

from __future__ import annotations

import time

from hicache_backends.deadline import Deadline
from kvmanager.http.endpoint import Address, HttpEndpoint
from kvmanager.http.message import is_better_elsewhere, is_repeatable


class Tries:
    """The tries of one request, within its deadline: each address once, and the first once more if
    the connection to it had rested: it may have been closed meanwhile.

    A request that changes something twice if it arrives twice is not sent again once it was sent.
    """

    def __init__(self, endpoint: HttpEndpoint, request: bytes, deadline: Deadline) -> None:
        self._endpoint = endpoint
        self._repeatable = is_repeatable(request)
        self._deadline = deadline
        self._left = len(endpoint.addresses)
        self.sent = False

    def begin(self) -> Deadline:
        """When the next try ends: its share of what is left of the deadline."""
        self.sent = False
        if self._left <= 1:
            return self._deadline
        share_ns = int(self._deadline.remaining_ms() * 1e6) // self._left
        return Deadline(time.monotonic_ns() + share_ns)

    def failed(self, address: Address, error: OSError, *, rested: bool) -> None:
        """Raises the error if there is no other try."""
        if not (rested and not isinstance(error, TimeoutError)):
            self._left -= 1
            self._endpoint.failed(address)
        if self._left < 1 or self._deadline.passed or not (self._repeatable or not self.sent):
            raise error

    def enough(self, address: Address, response: bytes) -> bool:
        """Whether this is the answer. If not, another manager may give a better one."""
        if not is_better_elsewhere(response):
            return True
        self._left -= 1
        self._endpoint.failed(address)
        return self._left < 1 or self._deadline.passed or not self._repeatable
