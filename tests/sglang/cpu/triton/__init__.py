"""Names only: a gigabyte whose kernels need a GPU. Its decorators leave what they decorate."""

from __future__ import annotations

from typing import Any

from sglang_cpu.pretend import pretend

__version__ = "0"


def _decorate(*args: Any, **options: Any) -> Any:
    if len(args) == 1 and callable(args[0]) and not options:
        return args[0]
    return lambda decorated: decorated


__getattr__ = pretend(__name__, _decorate)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()
