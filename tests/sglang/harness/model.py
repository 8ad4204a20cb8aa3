"""Tiny models with random weights, made on the spot; a prompt is token ids below `VOCABULARY`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

VOCABULARY = 512

# Larger weights than a trained model starts from: one other token in a prompt shows in the output.
SPREAD = 0.1

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 16384,
    "initializer_range": SPREAD,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "tie_word_embeddings": False,
}

# DeepSeek's stretched positions: SGLang's CPU path has no others for it.
ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def make_qwen2(path: Path) -> Path:
    """Grouped-query attention: 4 layers, 4 heads over 2 of keys and values, each of 32 numbers."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return _save(Qwen2ForCausalLM, Qwen2Config(**COMMON, num_key_value_heads=2), path)


def make_deepseek(path: Path) -> Path:
    """Multi-head latent attention: 4 layers, 64 + 16 numbers a token in each."""
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    config = DeepseekV2Config(
        **COMMON,
        num_key_value_heads=4,
        kv_lora_rank=64,
        q_lora_rank=None,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        n_routed_experts=4,
        moe_layer_freq=1,
        rope_parameters=ROPE,
        first_k_dense_replace=4,  # every layer is dense
    )
    return _save(DeepseekV2ForCausalLM, config, path)


def _save(model: Any, config: Any, path: Path) -> Path:
    torch.manual_seed(0)
    model(config).to(torch.bfloat16).save_pretrained(path)
    return path
