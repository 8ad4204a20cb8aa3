"""Where a rank stands among those that serve together, and so which share of the KV it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hicache_backends.errors import ConfigError
from hicache_storage.sglang.engine import Engine


@dataclass(frozen=True)
class Shard:
    """This rank's place. Ranks count from 0. `tp`: the ranks that attention's heads are split over.

    `replicated`: each of those holds all of the KV, as for MLA.
    """

    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    cp_rank: int
    cp_size: int
    replicated: bool
    dp_rank: int = 0  # replicas hold the same bytes

    @classmethod
    def of(cls, storage_config: Any, engine: Engine) -> Shard:
        """The place that SGLang's storage configuration names; older ones name less."""

        def said(name: str, default: int) -> int:
            return int(getattr(storage_config, name, None) or default)

        tp_rank, tp_size = said("tp_rank", 0), said("tp_size", 1)
        cp_rank, cp_size = said("attn_cp_rank", 0), said("attn_cp_size", 1)
        if not engine.splits_requests:  # then SGLang counts the context-parallel ranks in
            tp_size = max(1, tp_size // cp_size)
            tp_rank %= tp_size
        return cls(
            tp_rank,
            tp_size,
            said("pp_rank", 0),
            said("pp_size", 1),
            cp_rank,
            cp_size,
            bool(getattr(storage_config, "is_mla_model", False)),
            said("dp_rank", 0),
        )

    @property
    def writes(self) -> bool:
        """Whether this rank stores the KV pages that all ranks hold."""
        return not self.replicated or self.tp_rank == 0

    @property
    def rank(self) -> int:
        """A number of its own within the data-parallel replica."""
        return (self.pp_rank * self.cp_size + self.cp_rank) * self.tp_size + self.tp_rank

    @property
    def number(self) -> int:
        """A number of its own within the server."""
        return self.dp_rank * self.ranks + self.rank

    @property
    def ranks(self) -> int:
        """Ranks of a data-parallel replica."""
        return self.pp_size * self.cp_size * self.tp_size


def refuse_unknown_shares(engine: Engine, shard: Shard) -> None:
    """Raises ConfigError where context-parallel ranks can't share or restore their pages."""
    ranks = int(engine.arg("attn_cp_size") or 1)
    if ranks > 1 and shard.cp_size == 1:
        raise ConfigError(
            f"SGLang {engine.version} doesn't tell its {ranks} context-parallel ranks apart, so "
            "that one would be served the pages of another: use 0.5.20 or later, or "
            "--attn-cp-size 1"
        )
    if shard.replicated and shard.cp_size > 1 and not engine.splits_requests:
        raise ConfigError(
            "of an MLA model SGLang stores pages on the first tensor-parallel rank alone, which is "
            f"one of {shard.cp_size} context-parallel ranks: the others' pages are never stored, "
            "so that none could be restored; use attention data parallelism or no context "
            "parallelism"
        )
