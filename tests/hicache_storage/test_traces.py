from __future__ import annotations

from pathlib import Path

import pytest

from hicache_backends.errors import ConfigError
from hicache_storage.tools.traces import predecessors, read_chains, read_requests

GOOD = '{"timestamp": 27, "input_length": 600, "output_length": 5, "hash_ids": [4, 9]}'


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_request_has_its_time_its_tokens_and_its_chain(tmp_path: Path) -> None:
    [request] = read_requests(write(tmp_path / "t.jsonl", GOOD, "", "  "))
    assert (request.timestamp_ms, request.input_tokens, request.output_tokens) == (27, 600, 5)
    assert request.blocks == (4, 9)


def test_requests_come_before_the_whole_trace_is_read(tmp_path: Path) -> None:
    requests = read_requests(write(tmp_path / "t.jsonl", GOOD, "not JSON"))
    assert next(requests).blocks == (4, 9)
    with pytest.raises(ConfigError, match="line 2"):
        next(requests)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "7",
        "{}",
        '{"hash_ids": 3}',
        '{"hash_ids": ["a"]}',
        '{"hash_ids": [true]}',
        '{"hash_ids": [-1]}',
        '{"hash_ids": [9223372036854775808]}',
        '{"hash_ids": [1, 2, 1]}',
        '{"hash_ids": [1], "timestamp": "soon"}',
        '{"hash_ids": [1], "input_length": null}',
    ],
)
def test_a_malformed_line_is_named_by_file_and_number(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "t.jsonl", GOOD, GOOD, line, GOOD)
    with pytest.raises(ConfigError, match=r"t\.jsonl, line 3: ."):
        list(read_requests(path))


def test_bytes_that_are_no_text_are_a_malformed_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(GOOD.encode() + b"\n\xff\xfe\n")
    with pytest.raises(ConfigError, match="line 2"):
        list(read_requests(path))


def test_a_missing_or_empty_trace_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: No such file"):
        read_chains(tmp_path / "nowhere.jsonl")
    with pytest.raises(ConfigError, match="no request"):
        read_chains(write(tmp_path / "t.jsonl", ""))


def test_every_block_has_the_predecessor_of_its_chain() -> None:
    assert predecessors([(1, 2, 3), (1, 2, 4), (5,)]) == {1: None, 2: 1, 3: 2, 4: 2, 5: None}
