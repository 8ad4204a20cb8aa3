"""How each control route is asked about a tenant's things, and who may ask: the rules by which
`test_isolation` looks through every route of the OpenAPI document.

A new route needs a rule here. Data routes need none: they are asked by their own documents, and are
for the roles that `routes.py` says.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from hicache_backends.identity import Namespace
from kvmanager import keys
from kvmanager.control import namespaces
from tests.kvmanager.service_documents import namespace

ID = namespaces.id_of(keys.tag(Namespace(**namespace("ours")).fingerprint))
PROCESS, STORE, MEDIUM, PAGE = "a1" * 16, "b2" * 16, "c3" * 16, "d4" * 16
HOST, SERVER = "secret-host", "secret-server"
SECRETS = (ID, PROCESS, STORE, MEDIUM, PAGE, HOST, SERVER, '"ours"')
"""None of these is in an answer to another tenant's token."""
ABSENT = {
    ID: "0" * 18,
    PROCESS: "0" * 32,
    HOST: "no-host",
    SERVER: "no-server",
    "ours": "nobodys",
}
"""The same for things that nobody has."""

ADMIN = frozenset({"admin"})
ROUTERS = frozenset({"admin", "router"})
ALL = frozenset({"admin", "router", "node"})


class Others(Enum):
    """What a token of another tenant is answered."""

    REFUSED = "as if there were no such thing, or that it is not for this tenant"
    OWN = "what its own tenant has, and nothing else"
    SAME = "what everybody is answered, who needs no token"


class Rule(NamedTuple):
    """`url`: the path, about our tenant's things, "" for the path as it is. `shows`: the answer to
    our own token holds our things, so that it can be seen that another's does not."""

    others: Others
    url: str = ""
    body: object = None
    roles: frozenset[str] = ADMIN
    shows: bool = True


_NAMESPACE = f"/v1/namespaces/{ID}"
_PINS = {"digests": [PAGE], "ttl_s": 60}
_REFUSED = Others.REFUSED

RULES: dict[tuple[str, str], Rule] = {
    ("GET", "/healthz"): Rule(Others.SAME, shows=False),
    ("GET", "/readyz"): Rule(Others.SAME, shows=False),
    ("GET", "/metrics"): Rule(Others.OWN, roles=ALL, shows=False),
    ("GET", "/v1/namespaces"): Rule(Others.OWN, roles=ROUTERS),
    ("GET", "/v1/namespaces/{id}"): Rule(_REFUSED, _NAMESPACE, roles=ROUTERS),
    ("PATCH", "/v1/namespaces/{id}"): Rule(_REFUSED, _NAMESPACE, {"mode": "off"}),
    ("POST", "/v1/namespaces/{id}/clear"): Rule(_REFUSED, f"{_NAMESPACE}/clear", shows=False),
    ("GET", "/v1/namespaces/{id}/pins"): Rule(_REFUSED, f"{_NAMESPACE}/pins"),
    ("PUT", "/v1/namespaces/{id}/pins"): Rule(_REFUSED, f"{_NAMESPACE}/pins", _PINS, shows=False),
    ("DELETE", "/v1/namespaces/{id}/pins"): Rule(_REFUSED, f"{_NAMESPACE}/pins", shows=False),
    ("GET", "/v1/tenants"): Rule(Others.OWN),
    ("GET", "/v1/tenants/{name}"): Rule(_REFUSED, "/v1/tenants/ours"),
    ("PUT", "/v1/tenants/{name}"): Rule(_REFUSED, "/v1/tenants/ours", {"mode": "off"}),
    ("DELETE", "/v1/tenants/{name}"): Rule(_REFUSED, "/v1/tenants/ours", shows=False),
    ("GET", "/v1/processes"): Rule(Others.OWN),
    ("PUT", "/v1/processes/{uuid}/mode"): Rule(
        _REFUSED, f"/v1/processes/{PROCESS}/mode", {"mode": "off"}
    ),
    ("GET", "/v1/servers"): Rule(Others.OWN),
    ("GET", "/v1/hosts"): Rule(Others.OWN),
    ("GET", "/v1/stores"): Rule(Others.OWN),
    ("GET", "/v1/media"): Rule(Others.OWN),
    ("GET", "/v1/stats"): Rule(Others.OWN, roles=ROUTERS),
    ("POST", "/v1/drain"): Rule(_REFUSED, body={"host": HOST}),
    ("GET", "/v1/drain"): Rule(_REFUSED, f"/v1/drain?server={SERVER}"),
    ("DELETE", "/v1/drain"): Rule(_REFUSED, f"/v1/drain?process={PROCESS}"),
    ("GET", "/v1/overview"): Rule(_REFUSED, "/v1/overview?tenant=ours"),
    ("GET", "/v1/events"): Rule(_REFUSED, f"/v1/events?namespace={ID}", roles=ROUTERS),
    ("POST", "/v1/locate"): Rule(_REFUSED, body={"namespaces": [ID], "digests": [PAGE]}, roles=ALL),
    ("POST", "/v1/explain"): Rule(_REFUSED, body={"namespace": ID, "digests": [PAGE]}, roles=ALL),
}
