"""The data routes in the OpenAPI document: FastAPI describes only its own."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from kvmanager.service.codec import JSON, MSGPACK
from kvmanager.service.documents import Problem
from kvmanager.service.handlers import DEADLINE_HEADER
from kvmanager.service.routes import DATA_ROUTES, DataRoute

_REFERENCES = "#/components/schemas/{model}"
_PROBLEMS = {
    "400": "Malformed",
    "401": "No token that is known",
    "403": "The token is not for this",
    "409": "An older epoch, an unknown namespace, or a member that is refused",
    "413": "The body is too long",
    "415": "Neither msgpack nor JSON",
    "422": "A field has no such value",
    "502": "Redis refuses",
    "503": "Redis does not answer",
}
BEARER = "bearer"


def describe(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the data routes added."""
    models: set[type[BaseModel]] = {Problem}
    for route in DATA_ROUTES:
        models |= {route.asks, route.answers}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, schemas = models_json_schema(
        [(model, "validation") for model in ordered], ref_template=_REFERENCES
    )
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(schemas["$defs"])
    components["securitySchemes"] = {BEARER: {"type": "http", "scheme": "bearer"}}
    for route in DATA_ROUTES:
        document["paths"][route.path] = {"post": _operation(route)}
    return document


def _operation(route: DataRoute) -> dict[str, Any]:
    return {
        "operationId": route.name,
        "tags": ["data"],
        "summary": route.summary,
        "description": f"For tokens of the roles {', '.join(sorted(route.roles))}. "
        f"{MSGPACK} holds the same fields, bytes as binary values.",
        "security": [{BEARER: []}, {}],
        "parameters": [
            {
                "name": DEADLINE_HEADER,
                "in": "header",
                "required": False,
                "description": "Milliseconds that the caller waits",
                "schema": {"type": "integer", "minimum": 1, "maximum": 9_999_999},
            }
        ],
        "requestBody": {"required": True, "content": _content(route.asks, JSON, MSGPACK)},
        "responses": {
            "200": {"description": "OK", "content": _content(route.answers, JSON, MSGPACK)},
            **{
                status: {"description": said, "content": _content(Problem, JSON, MSGPACK)}
                for status, said in _PROBLEMS.items()
            },
        },
    }


def _content(model: type[BaseModel], *types: str) -> dict[str, Any]:
    reference = {"$ref": _REFERENCES.format(model=model.__name__)}
    return {content: {"schema": reference} for content in types}
