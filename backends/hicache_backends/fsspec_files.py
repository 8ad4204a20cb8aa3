"""Files that appear whole, in file systems that rename: written aside, then put in their place."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import Any

WRITING = ".writing"
"""The folder in which files are written."""
ABANDONED_S = 3600.0
"""A file that was not touched for so long lies there because its writer was killed."""


class WholeFiles:
    """Writes the files below `root`. Every method raises what the file system raises."""

    def __init__(self, fs: Any, root: str) -> None:
        self._fs = fs
        self._folder = f"{root}/{WRITING}"

    def write(self, path: str, data: bytes, *, exclusive: bool = False) -> None:
        """Replace the file, or with `exclusive` raise FileExistsError where there is one."""
        aside = f"{self._folder}/{uuid.uuid4().hex}"
        try:
            self._fs.pipe_file(aside, data)
        except FileNotFoundError:
            self._fs.makedirs(self._folder, exist_ok=True)
            self._fs.pipe_file(aside, data)
        place = self._fs.link if exclusive else self._fs.mv
        try:
            try:
                place(aside, path)
            except FileNotFoundError:
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                place(aside, path)
        finally:
            if exclusive or self._fs.exists(aside):
                self._fs.rm_file(aside)

    def sweep(self) -> None:
        """Remove what killed writers left, where the file system tells its age."""
        for name in self._fs.ls(self._folder, detail=False):
            with contextlib.suppress(FileNotFoundError):  # its writer lives, or another one sweeps
                if time.time() - self._fs.modified(name).timestamp() > ABANDONED_S:
                    self._fs.rm_file(name)
