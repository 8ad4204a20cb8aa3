"""A process that counts as SGLang's do with `--enable-metrics`; said what by JSON on its input:

[[name, {label: value}, increment], ...]
"""

from __future__ import annotations

import json
import sys

import prometheus_client


def main() -> None:
    registry = prometheus_client.CollectorRegistry()
    families: dict[str, prometheus_client.Counter] = {}
    for line in sys.stdin:
        for name, labels, increment in json.loads(line):
            if name not in families:
                families[name] = prometheus_client.Counter(name, "", [*labels], registry=registry)
            family = families[name]
            (family.labels(**labels) if labels else family).inc(increment)
        sys.stdout.write("counted\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
