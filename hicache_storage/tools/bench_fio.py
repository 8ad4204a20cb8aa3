"""The other comparison: fio, the real program, O_DIRECT, at the queue depth that suits it best."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from statistics import median
from typing import Literal

from hicache_backends.errors import ConfigError, StorageError

DEPTHS = (1, 2, 4, 8, 16, 32)
Way = Literal["read", "write"]


class Fio:
    """Sequential transfers of `block_bytes` over the first `total_bytes` of a file."""

    def __init__(self, block_bytes: int, total_bytes: int) -> None:
        program = shutil.which("fio")
        if program is None:
            raise ConfigError("--against fio needs the program fio: apt-get install fio")
        self._program = program
        self._block_bytes = block_bytes
        self._total_bytes = total_bytes

    def lay_out(self, file: Path) -> None:
        """Create `file`, written once, so that later writes overwrite extents that exist."""
        self.bytes_per_s("write", file, 8)

    def best_depth(self, way: Way, file: Path, rounds: int) -> int:
        """The depth that was fastest in the median over the rounds, in each of which all run."""
        rates: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
        for _ in range(rounds):
            for depth in DEPTHS:
                rates[depth].append(self.bytes_per_s(way, file, depth))
        return max(DEPTHS, key=lambda depth: median(rates[depth]))

    def bytes_per_s(self, way: Way, file: Path, depth: int) -> float:
        """One run. Raises StorageError if fio fails."""
        command = [
            self._program,
            "--name=bench",
            f"--filename={file}",
            f"--rw={way}",
            f"--bs={self._block_bytes}",
            f"--size={self._total_bytes}",
            f"--iodepth={depth}",
            "--ioengine=libaio",
            "--direct=1",
            "--numjobs=1",
            "--output-format=json",
        ]
        if way == "read":
            command.append("--readonly")
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no shell, our arguments
        if done.returncode:
            raise StorageError(f"fio failed: {(done.stderr or done.stdout).strip()[-300:]}")
        job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0][way]
        return float(job["io_bytes"]) / (float(job["runtime"]) / 1000)
