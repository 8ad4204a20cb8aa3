"""Which namespaces a request is about, and which of them its token may see."""

from __future__ import annotations

from kvmanager.control import namespaces
from kvmanager.control.namespaces import NamespaceRecord
from kvmanager.control.processes import ProcessRecord
from kvmanager.service.access import Forbidden, Grant
from kvmanager.service.codec import Refusal
from kvmanager.service.control.base import Control
from kvmanager.service.tracing import concerns


async def visible(control: Control, grant: Grant) -> list[NamespaceRecord]:
    """The namespaces of the grant's tenants, up to 2 s old, in the order of their ids. Raises
    Refusal."""
    return [found for found in await control.roster.all(control.run) if may_see(grant, found)]


async def visible_processes(control: Control, grant: Grant) -> list[ProcessRecord]:
    """The processes of the grant's tenants, up to 2 s old. Raises Refusal."""
    everyone = await control.roster.processes(control.run)
    return [one for one in everyone if may_see(grant, one.namespace)]


async def found(control: Control, grant: Grant, name: str) -> NamespaceRecord:
    """The namespace of an id, as it is now. Raises Refusal: 404 for none and for another's."""
    try:
        tag = namespaces.tag_of(name)
    except ValueError:
        raise missing() from None
    record = await control.run(namespaces.describe(tag), tag)
    if record is None or not may_see(grant, record):
        raise missing()
    concerns(record.tenant)
    return record


def may_see(grant: Grant, record: NamespaceRecord) -> bool:
    """Whether a namespace is one of the grant's tenants."""
    return is_for(grant, record.tenant)


def is_for(grant: Grant, tenant: str) -> bool:
    """Whether a tenant is among the grant's."""
    try:
        grant.check_tenant(tenant)
    except Forbidden:
        return False
    return True


def missing() -> Refusal:
    """The answer about a namespace that is not there, and about another tenant's."""
    return Refusal(404, "not_found", "there is no such namespace")
