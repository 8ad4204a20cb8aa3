from __future__ import annotations

import logging
import sys

import pytest

from hicache_backends.errors import ConfigError
from hicache_backends.io import select
from hicache_backends.io.select import open_engine


@pytest.fixture
def _no_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hicache_backends.io.native", None)
    monkeypatch.setattr(select, "_warned", [])


def test_the_engine_in_c_is_taken_where_it_is() -> None:
    assert open_engine().name == "native"
    assert open_engine("native").name == "native"
    assert open_engine("posix").name == "posix"


@pytest.mark.usefixtures("_no_extension")
def test_without_the_extension_python_does_it_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert open_engine().name == "posix"
        assert open_engine().name == "posix"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "slower" in caplog.text


@pytest.mark.usefixtures("_no_extension")
def test_native_asked_for_and_missing_names_the_remedy() -> None:
    with pytest.raises(ConfigError, match="compiler"):
        open_engine("native")


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="auto, native, posix"):
        open_engine("natve")
    with pytest.raises(ConfigError, match="4096"):
        open_engine(max_transfer_bytes=100)
