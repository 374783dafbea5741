"""Arithmetic of a prefill, and bytes of what is remembered: counted from a model's shapes."""

from __future__ import annotations

from ttkern.model.config import ModelConfig


def prefill_flops(config: ModelConfig, num_tokens: int) -> float:
    """Floating-point operations of prefilling a prompt from its beginning, the head left out.

    2 for each weight and token; attention reads the positions before each token, 2 products of head_dim per head; the
    delta rule updates and reads a K x V state per value head: 3 products.
    """
    c = config
    mlp = 3 * c.hidden_size * c.intermediate_size
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    attention = c.hidden_size * (3 * q + 2 * kv)
    key, value = c.linear_num_key_heads * c.linear_key_head_dim, c.linear_num_value_heads * c.linear_value_head_dim
    gdn = c.hidden_size * (2 * key + 3 * value + 2 * c.linear_num_value_heads)
    rule = 3 * value * c.linear_key_head_dim
    layers = c.num_attention_layers
    gdn_layers = c.num_hidden_layers - layers
    weights = layers * (attention + mlp) + gdn_layers * (gdn + rule + mlp)
    return 2.0 * num_tokens * weights + 2.0 * layers * q * num_tokens * num_tokens


def state_bytes(config: ModelConfig) -> int:
    """Of one sequence's GDN states as prefill keeps them: recurrent states in float32, 3 conv columns in bfloat16."""
    c = config
    key, value = c.linear_num_key_heads * c.linear_key_head_dim, c.linear_num_value_heads * c.linear_value_head_dim
    per_layer = 4 * value * c.linear_key_head_dim + 3 * 2 * (2 * key + value)
    return (c.num_hidden_layers - c.num_attention_layers) * per_layer
