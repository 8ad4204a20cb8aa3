"""SGLang's own 3FS metadata server, set up to be measured against; none of it is kept here.

The one module that holds server and client is taken from an installed sglang or from its wheel
and laid into a cache directory, next to a virtual environment with what it imports:

    <cache>/site/sglang/srt/mem_cache/...   that module, and two stand-ins for modules whose
                                            names it imports but that would need torch
           /venv                            fastapi, uvicorn and the rest of its requirements
"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from hicache_backends.errors import ConfigError, StorageUnavailable

SGLANG = "sglang==0.5.23"
REQUIREMENTS = ("fastapi", "orjson", "requests", "uvicorn>=0.51", "uvloop")  # sglang's own list
MODULE = "sglang.srt.mem_cache.storage.hf3fs.mini_3fs_metadata_server"
_FILE = MODULE.replace(".", "/") + ".py"
_STAND_INS = {
    "sglang/srt/mem_cache/hicache_storage.py": (
        "from enum import Enum\n\n\nclass PoolName(str, Enum):\n    KV = 'kv'\n"
    ),
    "sglang/srt/mem_cache/storage/hf3fs/storage_hf3fs.py": (
        "class Hf3fsMetadataInterface:\n    pass\n"
    ),
}
START_S = 30.0

Say = Callable[[str], None]


class Mini3fs:
    """What is needed to run the server and its client: `python` and `site`."""

    def __init__(self, cache: Path) -> None:
        self.python = cache / "venv" / "bin" / "python"
        self.site = cache / "site"

    def serve(self) -> Mini3fsServer:
        """A running server on a free loopback port. Raises StorageUnavailable."""
        return Mini3fsServer(self)


class Mini3fsServer:
    """The metadata server as a process of its own; ended with this object's context."""

    def __init__(self, mini3fs: Mini3fs) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(  # noqa: S603  # a fixed module of a chosen environment
            [str(mini3fs.python), "-m", MODULE, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, "PYTHONPATH": str(mini3fs.site)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._await(port)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Mini3fsServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _await(self, port: int) -> None:
        give_up = time.monotonic() + START_S
        while time.monotonic() < give_up and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise StorageUnavailable(f"mini_3fs_metadata_server did not start on port {port}")


def default_cache() -> Path:
    """`hicache-storage/mini3fs` in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hicache-storage" / "mini3fs"


def prepare(cache: Path, wheel: Path | None = None, say: Say = lambda _step: None) -> Mini3fs:
    """Lay everything out in `cache`, or use what an earlier call left there.

    `wheel`: sglang's wheel; without one an installed sglang is used, else pip downloads the
    wheel. `say` is told each step that takes time. Raises ConfigError naming the remedy.
    """
    mini3fs = Mini3fs(cache)
    try:
        if wheel is not None or not (mini3fs.site / _FILE).exists():
            _lay_out(mini3fs.site, _source(cache, wheel, say))
        _install(mini3fs, say)
    except OSError as error:
        raise ConfigError(f"{cache} cannot hold what mini3fs needs: {error}") from error
    return mini3fs


def _source(cache: Path, wheel: Path | None, say: Say) -> bytes:
    if wheel is None:
        spec = importlib.util.find_spec("sglang")
        for root in spec.submodule_search_locations or () if spec else ():
            path = Path(root).parent / _FILE
            if path.exists():
                say(f"using the sglang installed in {root}")
                return path.read_bytes()
        wheel = _download(cache, say)
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(_FILE)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"--sglang-wheel {wheel} is not a wheel with {_FILE}: {error}") from error


def _download(cache: Path, say: Say) -> Path:
    say(f"downloading {SGLANG}, without what it requires")
    folder = cache / "wheel"
    _run(
        "pip download",
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "-d",
        folder,
        SGLANG,
    )
    return next(folder.glob("sglang-*.whl"))


def _lay_out(site: Path, module: bytes) -> None:
    imported = set(re.findall(rb"^from (sglang[\w.]+) import", module, re.MULTILINE))
    known = {name.removesuffix(".py").replace("/", ".").encode() for name in _STAND_INS}
    if imported - known:
        raise ConfigError(f"this sglang's {_FILE} imports {sorted(imported - known)}: use {SGLANG}")
    for name, text in {**_STAND_INS, _FILE: module.decode()}.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _install(mini3fs: Mini3fs, say: Say) -> None:
    done = mini3fs.python.parent.parent / "installed"
    if done.exists():
        return
    say(f"installing {', '.join(REQUIREMENTS)} into an environment of their own")
    _run("venv", sys.executable, "-m", "venv", "--clear", done.parent)
    _run("pip install", mini3fs.python, "-m", "pip", "install", "-q", *REQUIREMENTS)
    done.touch()


def _run(what: str, *command: str | Path) -> None:
    ended = subprocess.run(  # noqa: S603  # fixed commands, no shell
        [str(word) for word in command], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        said = (ended.stderr or ended.stdout).strip().splitlines()[-1:]
        raise ConfigError(": ".join([f"{what} failed", *said]))
