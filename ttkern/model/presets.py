"""Shapes of models by name, for work that needs no weights."""

from __future__ import annotations

from ttkern.errors import TtkernError
from ttkern.model.config import ModelConfig, layer_pattern

PRESETS: dict[str, ModelConfig] = {
    "qwen3.6-27b": ModelConfig(
        vocab_size=248320,
        hidden_size=5120,
        intermediate_size=17408,
        num_hidden_layers=64,
        layer_types=layer_pattern(64),
        num_attention_heads=24,
        num_key_value_heads=4,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=48,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        max_position_embeddings=262144,
        rope_theta=10_000_000.0,
        partial_rotary_factor=0.25,
        rms_norm_eps=1e-6,
        dtype="bfloat16",
    ),
    "qwen3.5-9b": ModelConfig(
        vocab_size=248320,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=32,
        layer_types=layer_pattern(32),
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        max_position_embeddings=262144,
        rope_theta=10_000_000.0,
        partial_rotary_factor=0.25,
        rms_norm_eps=1e-6,
        dtype="bfloat16",
    ),
    # Nobody's model: both kinds of layer, for checks that should take seconds.
    "small": ModelConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        layer_types=layer_pattern(4),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_conv_kernel_dim=4,
        max_position_embeddings=32768,
        rope_theta=10_000_000.0,
        partial_rotary_factor=0.25,
        rms_norm_eps=1e-6,
        dtype="bfloat16",
    ),
}


def preset(name: str) -> ModelConfig:
    """The shapes of a published model. Raises TtkernError with the known names for any other."""
    if name not in PRESETS:
        raise TtkernError(
            f"{name!r} is neither a checkpoint folder nor a preset; presets are {', '.join(sorted(PRESETS))}"
        )
    return PRESETS[name]
