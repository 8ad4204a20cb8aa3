"""A store's directory on 3FS: made by the one process that ever writes there, and signed by it."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
import uuid
from pathlib import Path

from hicache_backends.segment.directory import StoreDirectory
from hicache_backends.threefs import adoption
from hicache_backends.threefs.tenure import LEASE_S, SIGN_S, Here, Tenure
from hicache_backends.usrbio.mount import check_mounted

_log = logging.getLogger(__name__)


class SignedDirectory(StoreDirectory):
    """A store that this process alone writes to, until `close`.

    `pledged_bytes`: what the store is about to have. `wanted_s`: see `Tenure`.
    """

    def __init__(self, path: str, slot_bytes: int) -> None:
        """`slot_bytes`: what a page takes of a capacity. Raises FileExistsError where another
        process was given the same name."""
        super().__init__(path)
        self.pledged_bytes = 0
        self.wanted_s = 0
        self._slot_bytes = slot_bytes
        self._here = Here.now()
        self._vanished = False
        self._signed_s = int(time.time())
        self._lock = threading.Lock()
        self._closed = threading.Event()
        Path(path).mkdir()
        self._tenure().write(path, create=True)
        threading.Thread(target=self._go_on_signing, name="hicache-tenure", daemon=True).start()

    @classmethod
    def make(cls, parent: str, slot_bytes: int) -> SignedDirectory:
        """A store under a name that no other has. Raises OSError."""
        while True:
            with contextlib.suppress(FileExistsError):
                return cls(f"{parent}/{uuid.uuid4().hex}", slot_bytes)

    @property
    def file_bytes(self) -> int:
        """What the store's segments take, or are about to."""
        own = self._slot_bytes * sum(self.slots.values())
        return max(self.pledged_bytes, own) + self._slot_bytes * self.adopted_pages

    @property
    def vanished(self) -> bool:
        return self._vanished

    def sign(self, *, clean: bool = False) -> None:
        with self._lock:
            if self._closed.is_set():
                return
            try:
                self._check_lapse()
                tenure = self._tenure(clean=clean)
                tenure.write(self.path)
                self._signed_s = tenure.signed_s
            except FileNotFoundError:
                check_mounted(self.path)
                self._vanished = True
                raise

    def close(self) -> None:
        self._closed.set()

    def _check_lapse(self) -> None:
        """Raises FileNotFoundError where nothing was signed for so long that another process took
        the store over."""
        if time.time() - self._signed_s > LEASE_S and adoption.is_adopted(self.path):
            raise FileNotFoundError(errno.ENOENT, "another process took it over", self.path)

    def _tenure(self, *, clean: bool = False) -> Tenure:
        return Tenure(
            self.uuid, self._here, int(time.time()), clean, self.file_bytes, self.wanted_s
        )

    def _go_on_signing(self) -> None:
        while not self._closed.wait(SIGN_S):
            try:
                self.sign()
            except OSError as error:
                _log.warning("%s cannot be signed: %s", self.path, error.strerror)
