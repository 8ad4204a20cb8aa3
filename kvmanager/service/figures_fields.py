"""The fields of a process's report."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvmanager import reports
from kvmanager.service.fields import Digest, Number, Text, Uuid

CounterName = Annotated[str, Field(max_length=64)]
"""One that is not in the vocabulary is passed over: newer processes may count more."""
Kind = Literal["nvme", "3fs", "mooncake", "fsspec", "memory", "other"]


class _Fields(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="ignore", frozen=True, val_json_bytes="hex", ser_json_bytes="hex"
    )


class StoreFields(_Fields):
    """One store of the process. `bytes`: of its pages; no capacity: it bounds itself."""

    store: Uuid
    pages: Number = 0
    bytes: Number = 0
    capacity_bytes: Number = 0


class HotFields(_Fields):
    """A first page of loads: how many began with it, and their pages."""

    digest: Digest
    loads: Number
    pages: Number


class GaugeFields(_Fields):
    """The process as it is now."""

    kind: Kind = "other"
    mode: Literal["off", "read", "read_write"] = "read_write"
    breaker: Literal["up", "down", "rebuilding"] = "up"
    hung: Annotated[bool, Field(description="An I/O does not come back")] = False
    version: Text = ""
    started_s: Number = 0
    pages: Number = 0
    bytes: Number = 0
    capacity_bytes: Number = 0
    prefill_tokens_per_s: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] = 0
    stores: Annotated[list[StoreFields], Field(max_length=reports.MAX_STORES)] = []
    hot: Annotated[list[HotFields], Field(max_length=reports.MAX_HOT)] = []

    def gauges(self) -> reports.Gauges:
        """The same in the words of the library."""
        plain = self.model_dump(exclude={"stores", "hot"})
        stores = tuple(reports.StoreGauges(**dict(store)) for store in self.stores)
        hot = tuple(reports.Hot(**dict(page)) for page in self.hot)
        return reports.Gauges(**plain, stores=stores, hot=hot)
