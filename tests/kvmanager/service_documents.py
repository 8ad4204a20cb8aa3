"""Requests for every data route, made from the service's own OpenAPI document."""

from __future__ import annotations

import json
from typing import Any

import msgpack

from tests.kvmanager.http_service import Service

MSGPACK = {"content-type": "application/msgpack"}
JSON = {"content-type": "application/json"}
UUID = bytes(range(16))


def namespace(tenant: str = "default") -> dict[str, Any]:
    """The fields of a namespace, as a document has them."""
    return {
        "model": "model",
        "revision": "revision",
        "kv_dtype": "bf16",
        "layout": "page_first",
        "page_tokens": 64,
        "page_bytes": 4096,
        "tenant": tenant,
    }


def openapi(service: Service) -> dict[str, Any]:
    status, body = service.get("/openapi.json")
    assert status == 200
    document: dict[str, Any] = json.loads(body)
    return document


def data_paths(document: dict[str, Any]) -> list[str]:
    """Of every data route: each is about one namespace, which is in its document."""
    paths = document["paths"].items()
    return sorted(path for path, route in paths if "data" in route.get("post", {}).get("tags", ()))


def example(document: dict[str, Any], path: str, tenant: str) -> dict[str, Any]:
    """The least that the route's schema asks for, about a tenant's namespace, for JSON."""
    content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    built = _least(document, content["schema"])
    assert isinstance(built, dict)
    return {**built, "namespace": namespace(tenant)}


def post(
    service: Service, path: str, asked: object, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Sent and answered as JSON."""
    status, body = service.request(
        "POST", path, json.dumps(asked).encode(), {**JSON, **(headers or {})}
    )
    return status, json.loads(body)


def post_packed(service: Service, path: str, asked: object) -> tuple[int, Any]:
    """Sent and answered as msgpack."""
    status, body = service.request("POST", path, msgpack.packb(asked), MSGPACK)
    return status, msgpack.unpackb(body)


def _least(document: dict[str, Any], schema: dict[str, Any]) -> Any:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _least(document, document["components"]["schemas"][name])
    if "anyOf" in schema:
        return _least(document, schema["anyOf"][0])
    if schema["type"] == "object":
        wanted = schema.get("required", [])
        return {name: _least(document, schema["properties"][name]) for name in wanted}
    if schema["type"] == "array":
        return [_least(document, schema["items"])] * schema.get("minItems", 1)
    if schema["type"] == "string":
        return "ab" * (schema.get("minLength", 0) // 2)
    return False if schema["type"] == "boolean" else schema.get("minimum", 0)
