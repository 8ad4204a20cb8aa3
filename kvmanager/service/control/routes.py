"""All control routes: each module adds its own to the application."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI

from kvmanager.service.control import (
    drain,
    events,
    explain,
    locate,
    namespaces,
    overview,
    pins,
    processes,
    stats,
    stores,
    tenants,
)
from kvmanager.service.control.base import Control
from kvmanager.service.dashboard import pages

ADDED_BY: tuple[Callable[[FastAPI, Control], None], ...] = (
    namespaces.add,
    pins.add,
    tenants.add,
    processes.add,
    stores.add,
    drain.add,
    stats.add,
    locate.add,
    explain.add,
    events.add,
    overview.add,
    pages.add,
)
"""One line a module, so that what is served can be read here."""


def add_control(app: FastAPI, control: Control) -> None:
    """Add the routes of operators and routers."""
    for add in ADDED_BY:
        add(app, control)
