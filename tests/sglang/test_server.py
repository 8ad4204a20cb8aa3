"""SGLang's real server with the plugin: prompts come from every level, with the same answer."""

from __future__ import annotations

import re
import urllib.error
from pathlib import Path

import pytest

from tests.sglang.harness.server import Options, prompt, serve
from tests.sglang.harness.zygote import Zygote
from tests.sglang.serving import PAGE, again_from_storage, served, wait_for_pages


@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("model", ["qwen2", "deepseek"])
def test_an_answer_is_the_same_from_every_level(
    request: pytest.FixtureRequest, zygote: Zygote, tmp_path: Path, model: str, tp_size: int
) -> None:
    ids, root = prompt(500), tmp_path / "l3"
    config = served(root, shared=True)
    options = Options(config, tp_size=tp_size)
    writers = tp_size if model == "qwen2" else 1  # ranks of MLA hold the same
    with serve(zygote, request.getfixturevalue(model), tmp_path / "log", options) as server:
        cold = server.generate(ids)
        warm = server.generate(ids)
        wait_for_pages(root, 31 * writers)
        stored = again_from_storage(server, ids)
        part = again_from_storage(server, [*ids[:256], *prompt(200, seed=1)])
        both = server.generate(ids)
    assert (cold.device, cold.storage) == (0, 0)
    assert (warm.device, warm.storage) == (496, 0)
    assert (stored.device, stored.storage, stored.backend) == (0, 496, "HiCacheL3")
    assert (part.device, part.storage) == (0, 256)
    assert (both.device, both.storage) == (256, 240)
    assert cold.output_ids == warm.output_ids == stored.output_ids == both.output_ids
    assert server.log.read_text().count("self-test passed") == tp_size


@pytest.mark.parametrize("layout", ["layer_first", "page_head"])
@pytest.mark.parametrize("zero_copy", [True, False], ids=["by index", "as tensors"])
def test_other_layouts_and_pages_as_tensors(
    zygote: Zygote, qwen2: Path, tmp_path: Path, layout: str, zero_copy: bool
) -> None:
    ids, root = prompt(500), tmp_path / "l3"
    options = Options(served(root, zero_copy=zero_copy), layout=layout)
    with serve(zygote, qwen2, tmp_path / "log", options) as server:
        cold = server.generate(ids)
        wait_for_pages(root, 31)
        stored = again_from_storage(server, ids)
    assert stored.storage == 496
    assert stored.output_ids == cold.output_ids


def test_prompts_of_a_dead_server_are_found_by_the_next_one(
    zygote: Zygote, qwen2: Path, tmp_path: Path
) -> None:
    ids, root = prompt(500), tmp_path / "l3"
    options = Options(served(root))
    with serve(zygote, qwen2, tmp_path / "log", options) as server:
        cold = server.generate(ids)
        wait_for_pages(root, 31)
    with serve(zygote, qwen2, tmp_path / "log", options) as server:
        stored = server.generate(ids)
    assert stored.storage == 496
    assert stored.output_ids == cold.output_ids


def test_detach_attach_and_clear_while_running(zygote: Zygote, qwen2: Path, tmp_path: Path) -> None:
    ids, root = prompt(500), tmp_path / "l3"
    config = served(root)
    options = Options(config, admin_key="key")
    with serve(zygote, qwen2, tmp_path / "log", options) as server:
        cold = server.generate(ids)
        wait_for_pages(root, 31)
        server.detach()
        without = again_from_storage(server, ids)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            server.attach({**config, "nvme": {"paht": "x"}})
        server.attach(config)
        attached = again_from_storage(server, ids)
        server.clear_storage()
        cleared = again_from_storage(server, ids)
        wait_for_pages(root, 31)
        again = again_from_storage(server, ids)
    assert [a.storage for a in (without, attached, cleared, again)] == [0, 496, 0, 496]
    assert len({tuple(a.output_ids) for a in (cold, without, attached, cleared, again)}) == 1
    assert "nvme.paht" in server.log.read_text()


def test_a_long_conversation_whose_beginning_stays_in_memory_is_stranded_nowhere(
    zygote: Zygote, qwen2: Path, tmp_path: Path
) -> None:
    """Its early pages are never asked of storage, so that by age alone they would go first."""
    root, page_bytes = tmp_path / "l3", 2 * 4 * 2 * 32 * 2 * PAGE
    ids = prompt(320)
    pages = 140  # of which the conversation takes 110
    capacity = pages * (page_bytes + 64)
    nvme = {"capacity": capacity, "segment_bytes": capacity // 7}
    with serve(zygote, qwen2, tmp_path / "log", Options(served(root, nvme=nvme))) as server:
        for turn in range(9):
            answer = server.generate(ids)
            ids = [*ids, *answer.output_ids, *prompt(144, seed=100 + turn)]
            for seed in range(3):  # others come by once, and push out what is oldest
                server.generate(prompt(160, seed=1000 + 10 * turn + seed))
        whole = server.generate(ids)
        held = whole.device // PAGE
        stored = again_from_storage(server, ids)
    assert held >= 100
    assert stored.storage >= whole.device
    assert stored.output_ids == whole.output_ids


def test_answers_stay_right_and_hits_are_taken_while_storage_fails_now_and_then(
    zygote: Zygote, qwen2: Path, tmp_path: Path
) -> None:
    prompts = [prompt(300, seed=seed) for seed in range(10)]
    root, right = tmp_path / "l3", []
    with serve(zygote, qwen2, tmp_path / "log", Options()) as plain:
        right = [plain.generate(ids).output_ids for ids in prompts]
    options = Options(served(root), failure=0.05, delay_s=0.02)
    hits = 0
    with serve(zygote, qwen2, tmp_path / "log-2", options) as server:
        for number in range(50):
            answer = server.generate(prompts[number % 10])
            assert answer.output_ids == right[number % 10]
            hits += answer.storage > 0
            server.flush_cache()
    assert hits >= 20


def test_a_wrong_configuration_ends_the_start_with_what_to_do(
    zygote: Zygote, qwen2: Path, tmp_path: Path
) -> None:
    options = Options(served(tmp_path / "l3", nvme={"pageszie": 16}))
    with (
        pytest.raises(RuntimeError, match=r"pageszie.*page_size"),
        serve(zygote, qwen2, tmp_path / "log", options),
    ):
        pass


def test_the_start_names_the_models_revision(zygote: Zygote, qwen2: Path, tmp_path: Path) -> None:
    with serve(zygote, qwen2, tmp_path / "log", Options(served(tmp_path / "l3"))) as server:
        said = re.findall(r"HiCache initialized: .*", server.log.read_text())
    assert len(said) == 1
    assert re.search(r"\(qwen2\S*, files-[0-9a-f]{32}, bfloat16, page_first, ", said[0])
