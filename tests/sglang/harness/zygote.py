"""A process that imports SGLang once and forks its servers: up in 2 s, where a fresh one takes 16.

It reads orders, one JSON object a line, and answers each with the process id of the new server, the
leader of its own session. What it started ends with it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # threads of so small a model mostly wait for each other
    "PYTHONPATH": f"{ROOT}:{ROOT / 'backends'}",
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # nothing is worth compiling here
}


class Zygote:
    """The process as its client sees it; a context manager."""

    def __enter__(self) -> Zygote:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ENVIRONMENT},
            text=True,
        )
        self._answer()  # it has imported all
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def launch(self, arguments: list[str], env: dict[str, str], log: Path, *, fresh: bool) -> int:
        """Start a server; `fresh` runs `python -m sglang.launch_server`, as a user does."""
        log.touch()
        order = {"arguments": arguments, "env": env, "log": str(log), "fresh": fresh}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that starts servers has ended")
        return line


def main() -> None:
    """Take orders until standard input ends."""
    _import()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # servers that end are reaped by the kernel
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=answers, flush=True)
    started = []
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            _serve(**order)
        os.setpgid(pid, pid)  # as the child does: whoever is first, its group is there
        started.append(pid)
        print(pid, file=answers, flush=True)
    for pid in started:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _import() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sglang.srt.entrypoints.http_server
        import sglang.srt.models.registry  # noqa: F401 # every model's module, once
        from sglang_cpu.patches import apply

    apply()


def _serve(arguments: list[str], env: dict[str, str], log: str, fresh: bool) -> NoReturn:
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(env)
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if fresh:
        command = [sys.executable, "-m", "sglang.launch_server", *arguments]
        os.execv(sys.executable, command)  # noqa: S606 # no shell is wanted
    _serve_forked(arguments)


def _serve_forked(arguments: list[str]) -> NoReturn:
    """What sglang.launch_server does, with workers forked where SGLang asks for spawned ones."""
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_args, **_kwargs: None
    try:
        run_server(prepare_server_args(arguments))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
        os._exit(0)


if __name__ == "__main__":
    main()
