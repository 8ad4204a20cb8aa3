"""A request trace through `hicache-storage replay`, its processes over one Mooncake cluster.

python -m tests.backends.mooncake.replay TRACE [--nodes 2] [--block-bytes 4KiB] [...]

What is printed is what the command prints.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.backends.mooncake.cluster import MooncakeCluster
from tests.backends.mooncake.network import lonely_network


def command(cluster: MooncakeCluster, trace: str, *arguments: str) -> list[str]:
    """The command that replays a trace over this cluster."""
    start = [sys.executable, "-m", "hicache_storage", "replay", trace, "--backend", "mooncake"]
    return [*start, f"--option=master={cluster.address}", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("trace")
    parser.add_argument("--nodes", default="2")
    parser.add_argument("--segment-mib", type=int, default=2048)
    ours, others = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mooncake-replay-") as directory, lonely_network():
        cluster = MooncakeCluster(Path(directory))
        try:
            cluster.start_master()
            cluster.start_holder(ours.segment_mib << 20)
            replay = command(cluster, ours.trace, "--nodes", ours.nodes, *others)
            return subprocess.run(replay, check=False, env=environment()).returncode
        finally:
            cluster.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
