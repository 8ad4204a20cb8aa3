from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_backends.errors import ConfigError
from hicache_backends.sizes import format_size, parse_size


@pytest.mark.parametrize("text", ["4gb", "4GiB", "4G", "4 gib", " 4GB ", "4096M", "4294967296"])
def test_every_spelling_of_four_gibibytes_is_the_same(text: str) -> None:
    assert parse_size(text) == 4294967296 == parse_size(4294967296)


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("1", 1), ("7B", 7), ("1.5k", 1536), ("2TiB", 2 << 40), ("3pb", 3 << 50)],
)
def test_units_are_powers_of_1024_without_an_upper_limit(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    "value",
    [
        "",
        "GiB",
        "4 GiB free",
        "4xb",
        "-1",
        "+1",
        "1e9",
        "nan",
        "0.3B",
        "1,5G",
        "1.G",
        "٤G",
        "4\u212a",
        True,
        4.0,
        None,
        b"4G",
        [4],
    ],
)
def test_anything_else_is_an_error_that_names_the_key_and_the_value(value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_size(value, name="nvme.capacity")
    assert "nvme.capacity" in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", [-1, 0, "1023"])
def test_below_the_minimum_is_an_error_that_names_it(value: object) -> None:
    with pytest.raises(ConfigError, match=r"capacity must be at least 1 KiB"):
        parse_size(value, name="capacity", minimum=1024)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (4 << 30, "4 GiB"),
        (5 << 70, "5120 EiB"),
        (-2048, "-2 KiB"),
    ],
)
def test_sizes_are_printed_in_the_largest_unit(count: int, text: str) -> None:
    assert format_size(count) == text


@given(st.integers(0, 1 << 62))
def test_a_printed_size_reads_back_within_its_precision(count: int) -> None:
    number, unit = format_size(count).split()
    assert float(number) * parse_size(f"1{unit}") == pytest.approx(count, rel=0.05)
