"""A child process that asks the installed SGLang's own argument parser about launch flags.

It reads {flag: value or null} as JSON and answers with a JSON object: `version`, the flags that
are `unknown`, for each `refused` flag the values it takes, and the parser's `error`, "" if it takes
the rest. It is a process of its own because SGLang's import takes seconds, prints, and patches
other packages.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def main() -> None:
    """Read the flags, answer, end."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what SGLang prints is no answer
    with answer:
        json.dump(asked(json.load(sys.stdin)), answer)


def asked(flags: Mapping[str, str | None]) -> dict[str, Any]:
    """What the parser says of these flags. Raises what SGLang's import raises."""
    import sglang
    from sglang.srt.server_args import ServerArgs

    parser = _Parser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    actions = {name: action for action in parser._actions for name in action.option_strings}
    refused = {
        name: list(actions[name].choices or ())
        for name, value in flags.items()
        if name in actions and actions[name].choices and value not in (actions[name].choices or ())
    }
    known = {n: v for n, v in flags.items() if n in actions and n not in refused}
    words = [word for pair in known.items() for word in pair if word is not None]
    error = ""
    try:
        parser.parse_args(["--model-path", "m", *words])
    except ValueError as wrong:
        error = str(wrong)
    return {
        "version": str(sglang.__version__),
        "unknown": [name for name in flags if name not in actions],
        "refused": refused,
        "error": error,
    }


if __name__ == "__main__":
    main()
