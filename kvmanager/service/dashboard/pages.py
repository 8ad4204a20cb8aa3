"""The dashboard's files. They hold no figures: the page asks /v1/overview for them, with a token
where the service wants one."""

from __future__ import annotations

import hashlib
from importlib import resources

from fastapi import FastAPI, Request, Response

from kvmanager.service.control.base import Control

PREFIX = "/dashboard/"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FILES = (
    *("index.html", "style.css", "icon.svg"),
    *("app.js", "charts.js", "dom.js", "format.js", "panels.js", "panels_more.js"),
)
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def add(app: FastAPI, control: Control) -> None:
    """Add the page and its files, which anybody may read."""
    _ = control
    for name in FILES:
        path = "/" if name == "index.html" else PREFIX + name
        _add_file(app, path, name)


def _add_file(app: FastAPI, path: str, name: str) -> None:
    body = (resources.files(__package__) / name).read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = {**_HEADERS, "etag": tag}
    kind = _KINDS[name[name.rindex(".") :]]

    async def file(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=kind)

    app.add_api_route(path, file, methods=["GET", "HEAD"], include_in_schema=False)
