"""What a stand-in wheel holds in place of SGLang's metadata server: its protocol, on the standard
library, so that the benchmark's own flow is tested without a download."""

import argparse
import json
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sglang.srt.mem_cache.hicache_storage import PoolName  # isort: skip # laid out by mini3fs

stored: dict[str, int] = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # named by the base class
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer: dict[str, Any] = {}
        if self.path == "/0/exists":
            answer = {"exists": [key in stored for key in asked["keys"]]}
        elif self.path == "/0/reserve_and_allocate_page_indices":
            answer = {"indices": [[False, n] for n, _ in enumerate(asked["keys"])]}
        elif self.path == "/0/confirm_write":
            stored.update(asked["written_keys_to_confirm"])
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Hf3fsGlobalMetadataClient:
    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    def post(self, call: str, asked: dict[str, object]) -> Any:
        asked["namespace"] = PoolName.KV.value
        body = json.dumps(asked).encode()
        request = urllib.request.Request(f"{self.base_url}/0/{call}", body)  # noqa: S310  # loopback
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return json.loads(answer.read())

    def initialize(self, rank: int, num_pages: int) -> None:
        self.post("initialize", {"num_pages": num_pages})

    def reserve_and_allocate_page_indices(self, rank: int, keys: list[tuple[str, str]]) -> Any:
        return self.post("reserve_and_allocate_page_indices", {"keys": keys})["indices"]

    def confirm_write(self, rank: int, written: list[tuple[str, int]], released: list[int]) -> None:
        self.post("confirm_write", {"written_keys_to_confirm": written})

    def exists(self, rank: int, keys: list[str]) -> Any:
        return self.post("exists", {"keys": keys})["exists"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()
