"""The commands that the documents show are taken as they stand there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.files import DOCKER, REPOSITORY, in_shell, understood

DOCUMENTS = [REPOSITORY / "README.md", DOCKER / "README.md"]


def shown(document: Path) -> Iterator[list[str]]:
    """Calls of our commands in a document's sessions."""
    for block in re.findall(r"^```console\n(.*?)^```", document.read_text(), re.DOTALL | re.M):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            command = re.sub(r"\s#.*| &$", "", line.removeprefix("$ "))
            yield from in_shell(re.sub(r'^(\w+=\S+ )+|^\w+="?(?=\$\()|^eval "|"', "", command))


@pytest.mark.parametrize("document", DOCUMENTS, ids=["README", "docker/README"])
def test_commands_in_sessions_are_understood(document: Path) -> None:
    calls = [*shown(document)]
    assert calls
    for words in calls:
        understood(words)
