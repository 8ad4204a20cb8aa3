"""Sets a Mooncake client up and ends: run as a script, to see whether that works here and now.

In the asking process a master that does not answer would hold the GIL for a minute and more.
"""

from __future__ import annotations

import json
import os
import sys


def knock(arguments: list[object]) -> int:
    """0 if the master took this client."""
    from mooncake.store import MooncakeDistributedStore

    result: int = MooncakeDistributedStore().setup(*arguments)
    return result


if __name__ == "__main__":
    result = knock(json.loads(sys.argv[1]))
    os._exit(0 if result == 0 else 1)  # what is set up is not taken down: that can take long too
