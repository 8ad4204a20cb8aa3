"""The files of a deployment, read as what runs them would; and the commands that they name."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

REPOSITORY = Path(__file__).parents[2]
DOCKER = REPOSITORY / "docker"


@dataclass
class Stage:
    """One image of a Dockerfile: what it begins with, and its instructions in order."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, keyword: str) -> list[str]:
        return [words for known, words in self.steps if known == keyword]

    def last(self, keyword: str) -> list[str]:
        """The words of an instruction in exec form."""
        words: list[str] = json.loads(self.all(keyword)[-1])
        return words


def stages(path: Path = DOCKER / "Dockerfile") -> dict[str, Stage]:
    """The stages by name; a line that ends with a backslash goes on, comments are left out."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    found: dict[str, Stage] = {}
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        keyword, _, words = line.strip().partition(" ")
        if keyword == "FROM":
            base, _, name = words.partition(" AS ")
            found[name] = Stage(name, base)
        elif keyword and found:
            [*found.values()][-1].steps.append((keyword, words.strip()))
    return found


@dataclass(frozen=True)
class Copy:
    """What one COPY takes from where; `stage` is "" for the tree."""

    stage: str
    sources: Sequence[str]
    target: str


def copies(stage: Stage) -> Iterator[Copy]:
    for words in stage.all("COPY"):
        options = [word for word in words.split() if word.startswith("--")]
        *sources, target = [word for word in words.split() if not word.startswith("--")]
        origin = [word.partition("=")[2] for word in options if word.startswith("--from=")]
        yield Copy(origin[0] if origin else "", sources, target)


@cache
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DOCKER / "compose.yaml").read_text()))


def services() -> dict[str, dict[str, Any]]:
    return dict(compose()["services"])


def manifests(name: str) -> list[dict[str, Any]]:
    return [*yaml.safe_load_all((DOCKER / "kubernetes" / name).read_text())]


def understood(words: Sequence[str]) -> dict[str, Any]:
    """The values that a command of ours is called with, once its own parser has taken them. Fails
    for a command, an option or a value that there is not."""
    program, *arguments = words
    context = _group(program).make_context(program, [*arguments])
    while hasattr(context.command, "commands"):
        name, command, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        context = command.make_context(name, [*rest], parent=context)
    return dict(context.params)


def in_shell(line: str) -> Iterator[list[str]]:
    """The calls of our own commands in a line for a shell, those in `$(...)` included."""
    plain = re.sub(r'"?\$\((hostname)\)"?', r"\1", line)
    for part in re.split(r"\$\(|\)|;|&&|\|", plain):
        words = shlex.split(part)
        if words and words[0] in PROGRAMS:
            yield words


def variables(program: str) -> set[str]:
    """The environment variables that options of a program's commands take."""
    pending = [_group(program)]
    names: set[str] = set()
    while pending:
        command = pending.pop()
        pending += getattr(command, "commands", {}).values()
        for parameter in command.params:
            given = parameter.envvar or ()
            names |= {given} if isinstance(given, str) else set(given)
    return names


def _kvmanager() -> Any:
    from kvmanager.cli.app import build

    return build()


def _hicache_storage() -> Any:
    from hicache_storage.cli.app import build

    return build()


PROGRAMS = {"kvmanager": _kvmanager, "hicache-storage": _hicache_storage}


@cache
def _group(program: str) -> Any:
    return get_command(PROGRAMS[program]())
