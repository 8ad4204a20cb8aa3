"""What a server does when its memory is full."""

from __future__ import annotations

from kvmanager import resp

MEMORY = resp.command(b"INFO", b"memory")
"""Asks the server."""


def warning(memory: resp.Reply, shown: str) -> str:
    """What is to be said about it; "" if nothing is. `memory`: the reply to MEMORY."""
    lines = memory.decode("utf-8", "replace").splitlines() if isinstance(memory, bytes) else []
    policy = next((line.split(":")[1] for line in lines if "maxmemory_policy:" in line), "")
    if policy in ("", "noeviction"):
        return ""
    return (
        f"registry {shown}: maxmemory-policy is {policy}, so the server drops whole buckets of "
        "pages; set it to noeviction"
    )
