"""The server of the harness is SGLang's: a prompt is cold, on the device, back from storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sglang.harness.server import Options, prompt, serve
from tests.sglang.harness.zygote import Zygote


@pytest.mark.parametrize("model", ["qwen2", "deepseek"])
@pytest.mark.parametrize("tp_size", [1, 2])
def test_an_answer_is_the_same_from_every_level(
    request: pytest.FixtureRequest, zygote: Zygote, tmp_path: Path, model: str, tp_size: int
) -> None:
    ids = prompt(500)
    with serve(zygote, request.getfixturevalue(model), *_files(tmp_path, tp_size)) as server:
        cold = server.generate(ids)
        warm = server.generate(ids)
        server.flush_cache()
        stored = server.generate(ids)
    assert (cold.device, cold.storage) == (0, 0)
    assert (warm.device, warm.storage) == (496, 0)
    assert (stored.device, stored.storage) == (0, 496)
    assert cold.output_ids == warm.output_ids == stored.output_ids


def test_a_killed_server_leaves_no_process(zygote: Zygote, qwen2: Path, tmp_path: Path) -> None:
    with serve(zygote, qwen2, *_files(tmp_path, 2)) as server:
        assert len(server.processes()) >= 4
        server.kill()
        assert not server.processes()


def test_a_server_that_cannot_start_says_why(zygote: Zygote, tmp_path: Path) -> None:
    options = Options(arguments=["--no-such-flag"])
    with (
        pytest.raises(RuntimeError, match="no-such-flag"),
        serve(zygote, tmp_path, tmp_path / "log", options),
    ):
        pass


def _files(path: Path, tp_size: int) -> tuple[Path, Options]:
    config = {"file_storage_path": str(path / "l3"), "prefetch_threshold": 16}
    return path / "log", Options(config, storage_backend="file", tp_size=tp_size)
