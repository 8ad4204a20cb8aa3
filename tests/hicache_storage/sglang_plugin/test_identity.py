"""Namespaces: equal exactly where the bytes of pages are interchangeable, and never a guess."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from hicache_backends.errors import ConfigError
from hicache_backends.identity import Namespace
from hicache_storage.sglang.identity import KV
from hicache_storage.sglang.model import Model
from hicache_storage.sglang.shard import Shard, refuse_unknown_shares
from tests.hicache_storage.sglang_plugin.ranks import MODEL, ONE, engine, namespace, pool, told

LAYERS = 4
HEADS = {"mha": 8, "gqa": 2, "mla": 0}
SIZES = ((1, 2, 4, 8), (1, 2), (1, 2), (False, True))  # TP, PP, CP, attention data parallel


def ranks(kind: str) -> Iterator[tuple[Shard, tuple[Any, ...]]]:
    """Every rank of every deployment, with what its pages hold: layers, heads, tokens.

    As in SGLang: `tp_size` is that of attention with data parallelism, the whole without.
    """
    for tp, pp, cp, dp in itertools.product(*SIZES):
        for replica, stage, part, rank in itertools.product(
            range(1 + dp), range(pp), range(cp), range(tp)
        ):
            shard = told(
                splits=dp,
                tp_rank=rank if dp else part * tp + rank,
                tp_size=tp if dp else cp * tp,
                pp_rank=stage,
                pp_size=pp,
                attn_cp_rank=part,
                attn_cp_size=cp,
                is_mla_model=kind == "mla",
                dp_rank=replica,
            )
            total = HEADS[kind]
            held = max(1, total // tp)
            head = rank * held if total >= tp else rank // (tp // max(1, total))
            heads = (head, head + held) if total else ()
            layers = (stage * LAYERS // pp, (stage + 1) * LAYERS // pp)
            yield shard, (kind, layers, heads, (part, cp))


def rank_namespace(kind: str, shard: Shard, held: tuple[Any, ...], **more: Any) -> Namespace:
    _, (first, last), heads, _ = held
    of = pool(start_layer=first, layer_num=last - first, target_layer_num=last - first)
    if heads:
        of.head_num = heads[1] - heads[0]
    else:
        del of.head_num
    of.__dict__.update(more.pop("of", {}))
    return namespace(of, shard=shard, model=Model(kind, "r1", HEADS[kind], ""), **more)


@pytest.mark.parametrize("kind", HEADS)
def test_ranks_share_pages_exactly_where_they_hold_the_same(kind: str) -> None:
    made: dict[Namespace, Any] = {}
    named: dict[Any, set[Namespace]] = {}
    for shard, held in ranks(kind):
        for dtype, layout, flat, page in itertools.product(
            ("float16", "bfloat16"), ("page_first", "layer_first"), (False, True), (1, 64)
        ):
            content = (*held, dtype, layout, flat, page)
            of = {"dtype": f"torch.{dtype}", "layout": layout, "page_size": page}
            name = rank_namespace(kind, shard, held, flat=flat, of=of)
            assert made.setdefault(name, content) == content, "one name for two contents"
            named.setdefault(content, set()).add(name)
    fingerprints = {name.fingerprint for name in made}
    assert len(fingerprints) == len(made)
    for content, names in named.items():
        assert len(names) == 1, content


@pytest.mark.parametrize("kind", HEADS)
def test_data_parallel_replicas_share_and_number_their_ranks(kind: str) -> None:
    for shard, held in ranks(kind):
        again = dataclasses.replace(shard, dp_rank=shard.dp_rank + 3)
        assert rank_namespace(kind, shard, held) == rank_namespace(kind, again, held)
    deployment = [
        Shard(tp, 4, pp, 2, cp, 2, False, dp)
        for tp, pp, cp, dp in itertools.product(range(4), range(2), range(2), range(3))
    ]
    assert sorted(shard.number for shard in deployment) == list(range(48))


def test_ranks_of_unknown_heads_have_pages_of_their_own() -> None:
    unknown = Model("qwen", "r1", 0, "")
    shards = [Shard(rank, 4, 0, 1, 0, 1, False) for rank in range(4)]
    assert len({namespace(shard=shard, model=unknown) for shard in shards}) == 4
    other_size = [Shard(rank, 8, 0, 1, 0, 1, False) for rank in range(8)]
    assert len({namespace(shard=shard, model=unknown) for shard in shards + other_size}) == 12


@pytest.mark.parametrize("held", [2, 4, 8])
def test_rows_of_several_heads_are_not_taken_for_heads(held: int) -> None:
    """A pool may count rows that are no heads of the model; with 4 heads on 4 ranks each has 1."""
    shards = [Shard(rank, 4, 0, 1, 0, 1, False) for rank in range(4)]
    found = [namespace(pool(head_num=held), shard=shard) for shard in shards]
    assert len(set(found)) == 4
    assert [name.kv_heads for name in found] == [(0, held)] * 4
    assert "tp 3/4" in found[3].salt


def test_context_parallel_ranks_never_claim_each_others_heads() -> None:
    """4 heads on 2 parts of 4 ranks each: SGLang says that `tp_size` is 8, over which 4 heads
    would be split so that ranks 0 and 1 both have head 0."""
    config: dict[str, Any] = {"tp_size": 8, "attn_cp_size": 2}
    shards = [told(tp_rank=rank, attn_cp_rank=rank // 4, **config) for rank in range(8)]
    found = [namespace(pool(head_num=1), shard=shard) for shard in shards]
    assert [name.kv_heads[0] for name in found] == [0, 1, 2, 3] * 2
    assert [name.token_shard[0] for name in found] == [0] * 4 + [1] * 4


def test_mla_ranks_share_whatever_the_config_says_of_heads() -> None:
    latent = pool()
    del latent.head_num
    shards = [Shard(rank, 8, 0, 1, 0, 1, True) for rank in range(8)]
    for heads in (0, 8, 128):
        model = Model("deepseek", "r1", heads, "")
        found = {namespace(latent, shard=shard, model=model) for shard in shards}
        assert len(found) == 1
        assert found.pop().kv_heads == (0, 0)
    assert [shard.writes for shard in shards] == [True] + [False] * 7


@pytest.mark.parametrize("name", ["swa", "draft", "draft_swa", "indexer"])
def test_other_pools_are_each_rank_s_own(name: str) -> None:
    shards = [Shard(rank, 4, 0, 1, 0, 1, False) for rank in range(4)]
    found = {namespace(pool(head_num=1), shard=shard, name=name) for shard in shards}
    assert len(found) == 4
    assert len(found | {namespace(pool(head_num=1), shard=shard) for shard in shards}) == 8


def test_the_indexer_of_an_mla_model_is_every_rank_s() -> None:
    indexer = pool(dtype="torch.uint8")
    del indexer.head_num
    shards = [Shard(rank, 4, 0, 1, 0, 1, True) for rank in range(4)]
    assert len({namespace(indexer, shard=shard, name="indexer") for shard in shards}) == 1


def state(**said: Any) -> Any:
    """A pool of recurrent states, which have several types and no heads."""
    types_ = {"conv_dtype": "torch.bfloat16", "temporal_dtype": "torch.float32"}
    made = pool(page_size=1, num_mamba_layers=3, **{**types_, **said})
    del made.head_num, made.layer_num, made.target_layer_num, made.start_layer
    return made


def test_states_are_each_rank_s_own_even_beside_an_mla_model() -> None:
    for replicated in (False, True):
        shards = [Shard(rank, 4, 0, 1, 0, 1, replicated) for rank in range(4)]
        found = {namespace(state(), shard=shard, name="mamba") for shard in shards}
        assert len(found) == 4


def test_states_differ_in_each_of_their_types() -> None:
    """Of equal sizes, so that nothing else would tell them apart."""
    found = {
        namespace(state(conv_dtype=conv, temporal_dtype=temporal, dtype=conv), name="mamba")
        for conv in ("torch.float16", "torch.bfloat16")
        for temporal in ("torch.float16", "torch.bfloat16")
    }
    assert len(found) == 4


MLA = Shard(0, 1, 0, 1, 0, 1, True)
DRAFTED = dataclasses.replace(MODEL, draft_revision="d1")
SINGLE_CHANGES: dict[str, dict[str, Any]] = {
    "name": {"model": dataclasses.replace(MODEL, name="qwen-2")},
    "revision": {"model": dataclasses.replace(MODEL, revision="r2")},
    "quantization": {"by": engine(quantization="fp8")},
    "other quantization": {"by": engine(quantization="awq")},
    "torchao": {"by": engine(torchao_config="int8wo")},
    "dummy weights": {"by": engine(load_format="dummy")},
    "overrides": {"by": engine(json_model_override_args='{"rope_theta": 1}')},
    "scales": {"by": engine(quantization_param_path="/scales.json")},
    "engine": {"by": engine("0.5.22")},
    "hip": {"by": dataclasses.replace(engine(), hip=True)},
    "dtype": {"of": pool(dtype="torch.float16")},
    "fp8": {"of": pool(dtype="torch.uint8"), "by": engine(kv_cache_dtype="fp8_e4m3")},
    "other fp8": {"of": pool(dtype="torch.uint8"), "by": engine(kv_cache_dtype="fp8_e5m2")},
    "page size": {"of": pool(page_size=32)},
    "page size, same bytes": {"of": pool(page_size=32), "page_bytes": 16_384},
    "layout": {"of": pool(layout="page_first_direct")},
    "flat": {"flat": True},
    "format": {"of": pool(storage_format_tag="unified-token-major")},
    "first layer": {"of": pool(start_layer=4)},
    "layers": {"of": pool(layer_num=5, target_layer_num=5)},
    "layers, same bytes": {"of": pool(layer_num=8, target_layer_num=8), "page_bytes": 16_384},
    "heads": {"of": pool(head_num=8)},
    "heads, same bytes": {"of": pool(head_num=8), "page_bytes": 16_384},
    "head dim": {"page_bytes": 2 * 16_384},
    "pool": {"name": "swa"},
    "stage": {"shard": dataclasses.replace(ONE, pp_size=2)},
    "token shard": {"shard": dataclasses.replace(ONE, cp_size=2)},
    "tenant": {"global_kvmanager": {"namespace": "tenant"}},
    "salt": {"identity": {"salt": "x"}},
    "draft": {"of": pool(layer_num=5), "model": DRAFTED},
    "other draft": {
        "of": pool(layer_num=5),
        "model": dataclasses.replace(MODEL, draft_revision="d2"),
    },
}


def test_each_single_change_gives_a_namespace_of_its_own() -> None:
    base = namespace(page_bytes=16_384)
    assert base == namespace(), "16384 is what these pages have"
    found = {label: namespace(**change) for label, change in SINGLE_CHANGES.items()}
    for label, name in found.items():
        assert name == namespace(**SINGLE_CHANGES[label]), "the same again is the same"
    made = [base.fingerprint, *(name.fingerprint for name in found.values())]
    assert len(set(made)) == len(made), [label for label, n in found.items() if n == base]


@pytest.mark.parametrize(
    "same",
    [
        engine(quantization=None, torchao_config="", json_model_override_args="{}"),
        engine(load_format="auto", kv_cache_dtype="bfloat16"),
        engine(model_path="/elsewhere/qwen", port=30001, tp_size=8),
    ],
)
def test_what_changes_no_bytes_changes_no_namespace(same: Any) -> None:
    assert namespace(by=same) == namespace()


@pytest.mark.parametrize("extra", ["mtp_draft_buffer_infos", "mtp_draft_device_pools"])
def test_states_with_draft_layers_are_of_both_revisions(extra: str) -> None:
    drafted = state(**{extra: (object(),)})
    alone = namespace(state(**{extra: ()}), model=DRAFTED, name="mamba")
    both = namespace(drafted, model=DRAFTED, name="mamba")
    assert (alone.revision, both.revision) == ("r1", "r1, draft d1")


def test_a_draft_pool_takes_what_was_said_of_drafts() -> None:
    draft = pool(dtype="torch.uint8")
    fp8: dict[str, Any] = {"kv_cache_dtype": "fp8_e4m3"}
    own = {**fp8, "speculative_draft_kv_cache_dtype": "fp8_e5m2"}
    quantized = {**fp8, "speculative_draft_model_quantization": "fp8"}
    found = [
        namespace(draft, by=engine(**args), name="draft", model=DRAFTED)
        for args in (fp8, own, quantized)
    ]
    assert len(set(found)) == 3
    assert [name.kv_dtype for name in found] == ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fn"]
    target = {namespace(by=engine(**args), model=DRAFTED) for args in (fp8, quantized)}
    assert len(target) == 1, "the model's own pages are the same"


@pytest.mark.parametrize(
    "said",
    [{"name": "draft"}, {"name": "draft_swa"}, {"of": pool(layer_num=5)}],
)
def test_pages_of_an_unknown_draft_model_are_refused(said: dict[str, Any]) -> None:
    unknown = dataclasses.replace(MODEL, draft_revision=None)
    with pytest.raises(ConfigError, match=r"identity\.draft_revision is missing"):
        namespace(model=unknown, **said)
    namespace(model=unknown), "the model's own pages need none"


def test_eight_bits_without_their_type_are_refused() -> None:
    eight = pool(dtype="torch.uint8")
    with pytest.raises(ConfigError, match=r"identity\.kv_dtype is missing.*--kv-cache-dtype"):
        namespace(eight)
    configured = namespace(eight, identity={"kv_dtype": "fp8_e4m3"})
    assert configured == namespace(eight, by=engine(kv_cache_dtype="fp8_e4m3"))
    with pytest.raises(ConfigError, match=r"identity\.kv_dtype is 'fp8_e5m2'.*float8_e4m3fn"):
        namespace(eight, by=engine(kv_cache_dtype="fp8_e4m3"), identity={"kv_dtype": "fp8_e5m2"})


@pytest.mark.parametrize("said", ["bfloat16", "torch.bfloat16", "bf16"])
def test_a_type_may_be_said_by_any_of_its_names(said: str) -> None:
    assert namespace(identity={"kv_dtype": said}) == namespace()


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"identity": {"layout": "layer_first"}}, "identity.layout"),
        ({"identity": {"page_bytes": 4096}}, "identity.page_bytes"),
        ({"identity": {"layers": [0, 2]}}, "identity.layers"),
        ({"identity": {"kv_heads": [0, 2]}}, "identity.kv_heads"),
        ({"identity": {"token_shard": [1, 2]}}, "identity.token_shard"),
        ({"identity": {"pool": "swa"}}, "identity.pool"),
        ({"identity": {"kv_dtype": "float16"}}, "identity.kv_dtype"),
        ({"memory": {"page_size": 64}}, "memory.page_size"),
    ],
)
def test_a_configuration_that_says_otherwise_is_refused_by_its_key(
    said: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        namespace(**said)
    if "identity" in said and named != "identity.kv_dtype":
        assert namespace(name="swa", **said).pool == "swa", "it is said of the KV pool alone"


def test_heads_beside_an_mla_model_on_several_ranks_are_refused() -> None:
    shard = Shard(0, 2, 0, 1, 0, 1, True)
    with pytest.raises(ConfigError, match=r"'draft' is split.*first rank alone"):
        namespace(shard=shard, name="draft")
    assert namespace(shard=MLA, name="draft").kv_heads == (0, 4)


def test_a_pool_that_hands_over_part_of_its_pages_is_refused() -> None:
    """DeepSeek V3.2 before its indexer had a pool of its own."""
    with pytest.raises(ConfigError, match=r"hands over 16384 of the 17408 bytes.*newer SGLang"):
        namespace(pool(size_per_token=1024 + 64), by=engine("0.5.10"))
    assert namespace(pool(size_per_token=1024)) == namespace()


def test_context_parallel_ranks_that_are_not_told_apart_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"doesn't tell its 2 context-parallel ranks apart"):
        refuse_unknown_shares(engine("0.5.10", attn_cp_size=2), ONE)
    refuse_unknown_shares(engine(attn_cp_size=2), dataclasses.replace(ONE, cp_size=2))
    refuse_unknown_shares(engine(attn_cp_size=1), ONE)


def test_mla_parts_that_nobody_stores_are_refused() -> None:
    parts = Shard(0, 8, 0, 1, 0, 2, True)
    with pytest.raises(ConfigError, match=r"never stored.*attention data parallelism"):
        refuse_unknown_shares(engine(attn_cp_size=2), parts)
    refuse_unknown_shares(engine(attn_cp_size=2, splits=True), parts)


def test_a_pool_that_says_less_than_is_needed_is_no_guess() -> None:
    silent = pool()
    del silent.layout
    with pytest.raises(AttributeError, match="layout"):
        namespace(silent)
    assert namespace().pool == KV
