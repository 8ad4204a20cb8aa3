"""A request trace through `hicache-storage replay`, each process over a daemon of its own.

python -m tests.threefs.replay TRACE [--io-engine fuse] [--block-bytes 64KiB] [...]

The daemons lie over one backing directory, two hosts of one file system, and let the kernel keep
names and attributes for as long as 3FS does. What is printed is what the command prints.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.threefs.stand_in import ThreeFs

AS_3FS = {"attr_ms": 30_000, "entry_ms": 30_000, "absent_ms": 5000}
"""What the kernel keeps of attributes, names and absence, as in 3FS."""


@contextmanager
def hosts(directory: Path, count: int = 2, **options: Any) -> Iterator[list[ThreeFs]]:
    """Mounts of one file system, as on so many hosts."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                ThreeFs(directory / "backing", directory / f"host{n}", **{**AS_3FS, **options})
            )
            for n in range(count)
        ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("trace")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--chunk-bytes", type=int, default=64 << 10)
    parser.add_argument("--io-engine", default="usrbio")
    ours, others = parser.parse_known_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="threefs-replay-") as directory,
        hosts(Path(directory), ours.hosts, chunk_bytes=ours.chunk_bytes) as mounts,
    ):
        command = [sys.executable, "-m", "hicache_storage", "replay", ours.trace]
        command += ["--nodes", str(ours.hosts), "--backend", "3fs"]
        command += [f"--path={fs.mount}/kv" for fs in mounts]
        command += [f"--option=io_engine={ours.io_engine}", "--option=free_floor=0"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return subprocess.run([*command, *others], check=False, env=env).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
