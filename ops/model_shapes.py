"""The model shapes that cases are made of, so that all ops are tried at the same ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """Widths of one decoder on one chip; tokens and start of a prefill step, rows of a decode step."""

    hidden: int
    intermediate: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    key_heads: int
    value_heads: int
    gdn_dim: int
    tokens: int
    start: int
    rows: int
    block: int
    blocks: int
    weight_dtype: str = "bfloat16"
    eps: float = 1e-6
    theta: float = 10_000_000.0

    @property
    def key_dim(self) -> int:
        """Width of q, and of k, of a GDN layer."""
        return self.key_heads * self.gdn_dim

    @property
    def value_dim(self) -> int:
        """Width of v and z of a GDN layer."""
        return self.value_heads * self.gdn_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the causal convolution."""
        return 2 * self.key_dim + self.value_dim

    @property
    def table_width(self) -> int:
        """Entries of a page table: all blocks, to a multiple of 8."""
        return -(-self.blocks // 8) * 8

    @property
    def attention_chunk(self) -> int:
        """Tokens the attention kernels work on at once."""
        return min(128, self.tokens, self.start or self.tokens)


SHAPES = {
    "tiny": ModelShape(64, 96, 128, 4, 2, 32, 8, 2, 4, 32, tokens=64, start=64, rows=3, block=32, blocks=8),
    "small": ModelShape(160, 224, 333, 9, 3, 64, 32, 3, 9, 32, tokens=256, start=128, rows=8, block=64, blocks=16),
    "qwen3.6-27b": ModelShape(
        5120, 17408, 248320, 24, 4, 256, 64, 16, 48, 128, 2048, 2048, 8, 64, 128, weight_dtype="bfloat8_b"
    ),
    "qwen3.6-27b-tp4": ModelShape(
        5120, 4352, 62080, 6, 1, 256, 64, 4, 12, 128, 2048, 2048, 8, 64, 128, weight_dtype="bfloat8_b"
    ),
}
