"""A process that is killed when it has written a file and not yet put it in its place: URL."""

from __future__ import annotations

import os
import signal
import sys

import fsspec

from hicache_backends.fsspec_files import WholeFiles

fs, root = fsspec.url_to_fs(sys.argv[1])
fs.mv = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
WholeFiles(fs, root).write(f"{root}/page", b"half")
