from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from hicache_backends import table
from hicache_backends.errors import ConfigError, MissingExtra
from hicache_backends.identity import Namespace
from hicache_backends.memory import MemoryOptions, MemoryStorage
from hicache_backends.nvme import NvmeOptions
from hicache_backends.storage import PageStorage
from hicache_backends.table import Backend, backend_names, build_options, load_backend, open_storage
from hicache_backends.testing.canaries import NAMESPACE, PAGE_BYTES, digests_of, get, put


@dataclass(frozen=True)
class ParrotOptions:
    where: tuple[str, ...]
    capacity_bytes: int | None = None
    depth: int = 4
    ratio: float = 0.5
    eager: bool = False


class Parrot(MemoryStorage):
    def __init__(self, namespace: Namespace, options: ParrotOptions, shared: bool) -> None:
        super().__init__(namespace, 4)
        self.options, self.shared = options, shared


def open_parrot(namespace: Namespace, options: Any, *, shared: bool) -> PageStorage:
    return Parrot(namespace, options, shared)


PARROT = Backend(ParrotOptions, open_parrot, path_option="where")
not_a_backend = open_parrot


@pytest.fixture
def third_party(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = EntryPoints(
        EntryPoint(name, f"{__name__}:{attribute}", table.ENTRY_POINT_GROUP)
        for name, attribute in [("parrot", "PARROT"), ("broken", "not_a_backend")]
    )
    monkeypatch.setattr(table, "entry_points", lambda **chosen: installed.select(**chosen))


def parrot(name: str, options: dict[str, object] | None = None) -> ParrotOptions:
    storage = open_storage(name, NAMESPACE, options)
    assert isinstance(storage, Parrot)
    return storage.options


def test_a_backend_opens_by_name_and_by_url() -> None:
    for name in ("memory", "memory:"):
        storage = open_storage(name, NAMESPACE, {"capacity_bytes": 4 * PAGE_BYTES})
        assert storage.stats()["capacity_bytes"] == 4 * PAGE_BYTES
        assert storage.close()
    assert open_storage("memory:?capacity=1MiB", NAMESPACE).stats()["capacity_bytes"] == 1 << 20


def test_memory_is_bounded_by_default_and_says_how_far() -> None:
    capacity = open_storage("memory", NAMESPACE).stats()["capacity_bytes"]
    assert isinstance(capacity, int)
    assert PAGE_BYTES < capacity < 1 << 50


@pytest.mark.parametrize("name", ["nvmee", "NVME", "memry", "", "s4:///bucket"])
def test_an_unknown_name_lists_the_names_and_suggests_the_closest(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_storage(name, NAMESPACE)
    assert f"known: {', '.join(backend_names())}" in str(caught.value)
    if name in ("nvmee", "memry"):
        assert "did you mean" in str(caught.value)


@pytest.mark.parametrize(("key", "close"), [("capacty", "capacity_bytes"), ("path", "")])
def test_an_unknown_option_is_named_with_a_suggestion(key: str, close: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_storage("memory", NAMESPACE, {key: 1})
    assert f"unknown option memory.{key}" in str(caught.value)
    assert (f"did you mean {close!r}" in str(caught.value)) is bool(close)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"capacity": "lots"}, "memory.capacity"),
        ({"capacity_bytes": True}, "memory.capacity_bytes"),
        ({"capacity": 1, "capacity_bytes": 1}, "memory.capacity"),
        ({"capacity": PAGE_BYTES - 1}, "memory.capacity_bytes"),
        ({"capacity": 0}, "memory.capacity_bytes"),
    ],
)
def test_a_wrong_value_names_its_key(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        open_storage("memory", NAMESPACE, options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "p.where is required"),
        ({"where": []}, None),
        ({"where": [1]}, "p.where must be a string or a list of strings"),
        ({"where": ""}, "p.where must be"),
        ({"where": "/a", "depth": 1.5}, "p.depth must be a whole number"),
        ({"where": "/a", "depth": None}, "p.depth must be a whole number"),
        ({"where": "/a", "depth": "many"}, "p.depth must be a whole number"),
        ({"where": "/a", "depth": True}, "p.depth must be a whole number"),
        ({"where": "/a", "ratio": "half"}, "p.ratio must be a number"),
        ({"where": "/a", "eager": 1}, "p.eager must be true or false"),
        ({"where": "/a", "eager": "maybe"}, "p.eager must be true or false"),
    ],
)
def test_options_have_the_types_of_their_fields(
    options: dict[str, object], named: str | None
) -> None:
    if named is None:
        assert build_options(ParrotOptions, options, "p") == ParrotOptions(())
        return
    with pytest.raises(ConfigError, match=named):
        build_options(ParrotOptions, options, "p")


def test_every_option_reaches_the_backend_from_a_mapping_and_from_a_url(third_party: None) -> None:
    expected = ParrotOptions(("/mnt/a b",), 3 << 30, 8, 0.25, True)
    written: dict[str, object] = {"where": "/mnt/a b", "capacity": "3GiB", "depth": 8}
    assert parrot("parrot", {**written, "ratio": 0.25, "eager": True}) == expected
    url = "parrot:///mnt/a%20b?capacity=3GiB&depth=8&ratio=0.25&eager=true"
    assert parrot(url) == expected
    assert parrot("parrot:/mnt/a%20b") == ParrotOptions(("/mnt/a b",))
    assert parrot("parrot", {"where": ["/a", "/b"], "capacity_bytes": None, "ratio": 1}) == (
        ParrotOptions(("/a", "/b"), None, 4, 1.0)
    )


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("parrot://host/dir", "name:///path"),
        ("parrot:/dir#part", "name:///path"),
        ("parrot:/dir?depth", "cannot be read"),
        ("parrot:/dir?depth=1&depth=2", "'depth' is given twice"),
        ("parrot:/dir?where=/other", "'where' is given twice"),
        ("memory:/dir", "takes no path"),
    ],
)
def test_a_malformed_url_is_refused_with_its_reason(
    third_party: None, url: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_storage(url, NAMESPACE)


def test_an_option_in_the_url_and_in_the_mapping_is_refused(third_party: None) -> None:
    with pytest.raises(ConfigError, match="given twice"):
        open_storage("parrot:/dir?depth=2", NAMESPACE, {"depth": 2})


def test_entry_points_add_backends_and_do_not_replace_built_in_ones(third_party: None) -> None:
    assert backend_names() == sorted({"broken", "parrot", *table._TABLE})
    assert load_backend("parrot") is PARROT
    assert load_backend("memory").options is MemoryOptions
    with pytest.raises(ConfigError, match="broken"):
        load_backend("broken")


def test_shared_is_passed_on(third_party: None) -> None:
    for shared in (False, True):
        storage = open_storage("parrot:/dir", NAMESPACE, shared=shared)
        assert isinstance(storage, Parrot)
        assert storage.shared is shared


def test_a_missing_dependency_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_something() -> Backend:
        raise ModuleNotFoundError("No module named 'absent'", name="absent")

    monkeypatch.setattr(table, "_TABLE", {"absent": (needs_something, "absent-extra")})
    with pytest.raises(MissingExtra, match=r"pip install 'hicache-storage\[absent-extra\]'"):
        load_backend("absent")


def test_a_fault_of_our_own_is_not_blamed_on_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Backend:
        raise ImportError("cannot import name 'x'", name="hicache_backends.x")

    monkeypatch.setattr(table, "_TABLE", {"ours": (broken, "extra")})
    with pytest.raises(ConfigError, match="cannot import name 'x'") as caught:
        load_backend("ours")
    assert not isinstance(caught.value, MissingExtra)


def test_importing_the_table_imports_no_backend() -> None:
    code = (
        "import sys, hicache_backends.table\n"
        "print(sorted(m for m in sys.modules if m.startswith('hicache_backends.')))\n"
    )
    root = Path(table.__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert "hicache_backends.memory" not in run.stdout
    assert "hicache_backends.nvme" not in run.stdout


def test_nvme_opens_by_url_with_every_option_in_it(tmp_path: Path) -> None:
    options = {
        "capacity": "64MiB",
        "free_floor": "0",
        "segment": "1MiB",
        "io_engine": "posix",
        "io_mode": "buffered",
        "zero_copy": "never",
        "max_transfer": "1MiB",
        "create": "true",
    }
    assert {f.name.removesuffix("_bytes") for f in fields(NvmeOptions)} == {"paths", *options}
    storage = open_storage(f"nvme://{tmp_path}/root?{urlencode(options)}", NAMESPACE)
    assert storage.stats()["capacity_bytes"] == 64 << 20
    assert (storage.stats()["io_engine"], storage.stats()["io_mode"]) == ("posix", "buffered")
    assert all(put(storage, digests_of("page")))
    assert storage.close()
    again = open_storage("nvme", NAMESPACE, {"paths": [f"{tmp_path}/root"]})
    assert get(again, digests_of("page")) == [True]
    assert again.close()
