"""SGLang's real HTTP server on CPU, as processes of its own, and a client for it."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped] # it ships no types

from tests.sglang.harness.model import VOCABULARY
from tests.sglang.harness.zygote import Zygote

START_S = 120.0
REQUEST_S = 60.0
FLUSH_S = 30.0


@dataclass(frozen=True)
class Options:
    """How to launch: without `extra_config` there is no storage; `arguments` are any others."""

    extra_config: Mapping[str, Any] | None = None
    storage_backend: str = "dynamic"
    tp_size: int = 1
    page_size: int = 16
    tokens: int = 8192
    host_ratio: float = 2.0
    prefetch_policy: str = "wait_complete"
    write_policy: str = "write_through"
    layout: str = "page_first"
    admin_key: str | None = None
    # SGLang's own failure injector: the chance of a call to fail, and seconds at most that it waits
    failure: float = 0.0
    delay_s: float = 0.0
    arguments: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What was generated, and where the cached tokens of the prompt lay."""

    output_ids: list[int]
    device: int
    host: int
    storage: int
    backend: str | None


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random token ids; another seed shares no page with it."""
    return random.Random(seed).choices(range(3, VOCABULARY), k=length)  # noqa: S311 # test data


@contextmanager
def serve(
    zygote: Zygote, model: Path, log: Path, options: Options | None = None, *, fresh: bool = False
) -> Iterator[Server]:
    """A server that answers, killed at the end: a graceful stop takes SGLang up to 5 s.

    `fresh` starts it as a user does, by `python -m sglang.launch_server`, which takes 16 s, not 2.
    """
    server = Server(zygote, model, log, options or Options(), fresh=fresh)
    try:
        server.wait_until_healthy()
        yield server
    finally:
        server.kill()


class Server:
    """A running server. `pid` leads the process group of its scheduler and detokenizer too."""

    def __init__(
        self, zygote: Zygote, model: Path, log: Path, options: Options, *, fresh: bool = False
    ) -> None:
        self.options, self.log = options, log
        self.port = _free_port()
        arguments = _arguments(options, model, self.port)
        self.pid = zygote.launch(arguments, _environment(options), log, fresh=fresh)

    def wait_until_healthy(self, wait_s: float = START_S) -> None:
        """Until it answers /health; RuntimeError with the end of the log when it ends before."""
        end = time.monotonic() + wait_s
        while time.monotonic() < end:
            with suppress(OSError):
                self.call("GET", "/health", timeout_s=5)
                return
            if not self.processes():
                raise RuntimeError(f"the server has ended:\n{self.log_tail()}")
            time.sleep(0.02)
        raise TimeoutError(f"not healthy after {wait_s:.0f} s:\n{self.log_tail()}")

    def generate(self, input_ids: Sequence[int], max_new_tokens: int = 16) -> Answer:
        """Greedy decoding of a prompt of token ids, always to `max_new_tokens`."""
        sampling = {"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": list(input_ids), "sampling_params": sampling}
        reply = json.loads(self.call("POST", "/generate", body))
        cached = reply["meta_info"].get("cached_tokens_details") or {}
        return Answer(
            reply["output_ids"],
            cached.get("device", 0),
            cached.get("host", 0),
            cached.get("storage", 0),
            cached.get("storage_backend"),
        )

    def flush_cache(self) -> None:
        """Empty device and host memory, once backups and prefetches are done; storage keeps all."""
        self.call("POST", f"/flush_cache?timeout={FLUSH_S}")

    def clear_storage(self) -> str:
        """Ask the backend to forget its pages; SGLang answers 200 whatever it does."""
        return self.call("POST", "/hicache/storage-backend/clear")

    def attach(self, extra_config: Mapping[str, Any], backend: str = "dynamic") -> str:
        """Attach a storage backend at run time; needs `admin_key`. HTTPError if it fails."""
        body = {
            "hicache_storage_backend": backend,
            "hicache_storage_backend_extra_config_json": json.dumps(dict(extra_config)),
            "hicache_storage_prefetch_policy": self.options.prefetch_policy,
        }
        return self._call_when_idle("PUT", "/hicache/storage-backend", body)

    def detach(self) -> str:
        """Detach the storage backend at run time; needs `admin_key`."""
        return self._call_when_idle("DELETE", "/hicache/storage-backend")

    def metrics(self) -> str:
        """SGLang's Prometheus page; needs `--enable-metrics`."""
        return self.call("GET", "/metrics")

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = REQUEST_S) -> str:
        """One HTTP request with the admin key; HTTPError, with the reply, for a status from 400."""
        request = urllib.request.Request(  # always http
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        if self.options.admin_key:
            request.add_header("Authorization", f"Bearer {self.options.admin_key}")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as reply:  # noqa: S310 # http
                text: str = reply.read().decode()
        except urllib.error.HTTPError as error:
            told = f"{error.reason}: {error.read().decode()}"
            raise urllib.error.HTTPError(
                request.full_url, error.code, told, error.headers, None
            ) from error
        return text

    def _call_when_idle(self, method: str, path: str, body: Any = None) -> str:
        """As `call`, again while the scheduler has backups or prefetches under way."""
        end = time.monotonic() + REQUEST_S
        while True:
            try:
                return self.call(method, path, body)
            except urllib.error.HTTPError as error:
                if "not idle" not in str(error) or time.monotonic() > end:
                    raise
            time.sleep(0.05)

    def processes(self) -> list[psutil.Process]:
        """The live processes of the server, by name `sglang::scheduler` and the like."""
        return [process for process in psutil.process_iter() if self._owns(process)]

    def kill(self) -> None:
        """SIGKILL to every process at once, as a machine that dies."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        psutil.wait_procs(self.processes(), timeout=10)

    def stop(self, wait_s: float = 15.0) -> bool:
        """SIGTERM to the parent; SIGKILL to what is left. True if it went by itself."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        _, left = psutil.wait_procs(self.processes(), timeout=wait_s)
        self.kill()
        return not left

    def log_tail(self, lines: int = 40) -> str:
        """The end of what the server printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _owns(self, process: psutil.Process) -> bool:
        try:
            ours = os.getpgid(process.pid) == self.pid
            return bool(ours and process.status() != psutil.STATUS_ZOMBIE)
        except (ProcessLookupError, psutil.NoSuchProcess):
            return False


def _arguments(options: Options, model: Path, port: int) -> list[str]:
    flags: dict[str, object] = {
        "model-path": model,
        "device": "cpu",
        "dtype": "bfloat16",
        "host": "127.0.0.1",
        "port": port,
        "tp-size": options.tp_size,
        "page-size": options.page_size,
        "max-total-tokens": options.tokens,
        "context-length": options.tokens,
        "max-running-requests": 4,
        "mem-fraction-static": 0.3,
        "cuda-graph-backend-decode": "disabled",
        "cuda-graph-backend-prefill": "disabled",
        "hicache-ratio": options.host_ratio,
        "hicache-mem-layout": options.layout,
        "hicache-write-policy": options.write_policy,
        "hicache-storage-prefetch-policy": options.prefetch_policy,
    }
    if options.extra_config is not None:
        flags["hicache-storage-backend"] = options.storage_backend
        flags["hicache-storage-backend-extra-config"] = json.dumps(dict(options.extra_config))
    if options.admin_key:
        flags["admin-api-key"] = options.admin_key
    return [
        *(part for name, value in flags.items() for part in (f"--{name}", str(value))),
        *("--enable-hierarchical-cache", "--skip-tokenizer-init", "--skip-server-warmup"),
        *options.arguments,
    ]


def _environment(options: Options) -> dict[str, str]:
    env = dict(options.env)
    if options.tp_size > 1:  # one core a rank
        env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(options.tp_size)))
    if options.failure:
        env["SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE"] = str(options.failure)
    if options.delay_s:
        env["SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY"] = str(options.delay_s)
    return env


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
