from __future__ import annotations

import inspect
import pickle
import re

import pytest

from hicache_backends import errors
from hicache_backends.errors import ConfigError, HiCacheError, MissingExtra

CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and kind.__module__ == errors.__name__
}


def drawn_tree() -> dict[str, str]:
    """Each class of the docstring's drawing with the class above it."""
    parents, path = {}, ["HiCacheError"]
    for line in (errors.__doc__ or "").splitlines():
        branch = re.match(r"((?:│   |    )*)[├└]── (\w+)\s+\S", line)
        if branch:
            depth = len(branch[1]) // 4 + 1
            path[depth:] = [branch[2]]
            parents[branch[2]] = path[depth - 1]
    return parents


def test_the_drawn_tree_is_the_real_one() -> None:
    real = {
        name: next(base.__name__ for base in kind.__bases__ if issubclass(base, HiCacheError))
        for name, kind in CLASSES.items()
        if kind is not HiCacheError
    }
    assert drawn_tree() == real
    assert len(real) > 10


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_error_has_its_sentence(name: str) -> None:
    assert CLASSES[name].__doc__
    assert re.search(rf"^\S*.*\b{name}\s{{2,}}\w", errors.__doc__ or "", re.MULTILINE)


def test_bad_arguments_are_value_errors_too() -> None:
    for kind in (ConfigError, errors.InvalidKey, errors.InvalidBuffer):
        assert issubclass(kind, ValueError)


def test_a_missing_extra_says_what_to_install() -> None:
    error = MissingExtra("the Arrow access log", "tools")
    assert str(error) == "the Arrow access log needs an extra: pip install 'hicache-storage[tools]'"
    assert error.extra == "tools"


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_errors_cross_processes(name: str) -> None:
    arguments = ("feature", "extra") if name == "MissingExtra" else ("message",)
    error = CLASSES[name](*arguments)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes
