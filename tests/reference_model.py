"""Random Qwen3.5 models in transformers, and the same weights in ttkern's runner: the two sides of a truth test."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ttkern.engine.runner import DeviceRunner, RunnerConfig
from ttkern.engine.runner_protocol import DecodeRow, PrefillCall, PrefillStep, SampleSpec
from ttkern.model.config import ModelConfig
from ttkern.model.decoder import Decoder
from ttkern.model.device_weights import load_decoder_weights

GREEDY = SampleSpec(temperature=0.0, top_p=1.0, top_k=0, seed=0, step=0, logprobs=None, forbidden=())

BASE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25},
}
SHAPES: dict[str, dict[str, Any]] = {
    "base": {},
    "27b_ratios": {
        "hidden_size": 160,
        "num_attention_heads": 6,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    },
    "odd_heads": {
        "vocab_size": 333,
        "hidden_size": 96,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 9,
        "linear_conv_kernel_dim": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    },
    "tied": {
        "tie_word_embeddings": True,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 3,
        "linear_conv_kernel_dim": 2,
    },
    "all_gdn": {"layer_types": ["linear_attention"] * 3, "num_hidden_layers": 3},
    "all_attention": {
        "layer_types": ["full_attention"] * 3,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0, "partial_rotary_factor": 1.0},
    },
    "deep": {"num_hidden_layers": 8, "num_key_value_heads": 4, "linear_num_key_heads": 4, "hidden_size": 128},
}


class StateDictSource:
    """A transformers model's weights under the names that a checkpoint has without its prefix."""

    def __init__(self, model: Any) -> None:
        self._tensors = {name.removeprefix("model."): value for name, value in model.state_dict().items()}

    def load(self, name: str) -> torch.Tensor:
        return self._tensors[name].detach()


def reference_model(shape: dict[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A seeded transformers model whose logits are not flat and whose gates are neither open nor shut.

    The matrices halve what they are given: with a gain of 1 a random model amplifies rounding along the sequence, and
    transformers in float32 is itself 1e-4 off its float64 self; here it is 2e-6 off.
    """
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(seed)
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{**BASE, **shape})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2 and "conv1d" not in name:
                gain = 1.0 if "lm_head" in name else 0.5
                parameter.normal_(0.0, 1.0 if "embed" in name else gain * parameter.shape[-1] ** -0.5)
            elif "conv1d" in name:
                parameter.normal_(0.0, 0.5)
            elif name.endswith("linear_attn.norm.weight"):
                parameter.normal_(1.0, 0.1)
            elif name.endswith("norm.weight"):
                parameter.normal_(0.0, 0.1)
    return model.to(dtype)


def make_runner(target: Any, model: Any, *, weight_dtype: str = "bfloat16", **sizes: Any) -> DeviceRunner:
    """The model on a target."""
    config = ModelConfig.from_dict(model.config.to_dict())
    limits = RunnerConfig(**{"max_model_len": 8192, "num_blocks": 128, "max_num_seqs": 2, **sizes})
    weights = load_decoder_weights(
        target, config, StateDictSource(model), positions=limits.max_model_len, weight_dtype=weight_dtype
    )
    runner = DeviceRunner(Decoder(target, config, weights, attention_chunk=limits.attention_chunk), limits)
    runner.start()
    return runner


def whole(length: int) -> list[PrefillStep]:
    """The prompt in one step: exact where the length is a bucket, else padded to the next power of two."""
    bucket = max(32, 1 << (length - 1).bit_length())
    exact = bucket == length and length >= 128
    return [PrefillStep("traced_bucket" if exact else "masked_bucket", 0, length, bucket)]


def prefill(
    runner: DeviceRunner, tokens: list[int], steps: list[PrefillStep], *, slot: int = 0, blocks: list[int] | None = None
) -> tuple[np.ndarray, int]:
    """Logits of every prompt position, float32 [len(tokens), vocab], and the greedy next token."""
    table = list(range(runner.num_blocks)) if blocks is None else blocks
    rows, sampled = [], -1
    for index, step in enumerate(steps):
        last = index == len(steps) - 1
        part = tokens[step.start : step.start + step.length]
        call = PrefillCall(slot, step, part, table, index == 0, last, GREEDY if last else None, None, None)
        result = runner.prefill(call)
        rows.append(step_logits(runner, step))
        if result.sampled is not None:
            sampled = result.sampled.token
    return np.concatenate(rows), sampled


def step_logits(runner: DeviceRunner, step: PrefillStep) -> np.ndarray:
    """Logits of the real positions of the step that has just run."""
    buffers = runner.steps[step.bucket, step.path == "masked_bucket"]
    parts = []
    for first in range(0, step.length, 32):
        buffers.want_rows(list(range(first, min(first + 32, step.length))), step.length)
        buffers.gather.replay()
        logits = runner.target.ttnn.to_torch(runner._head.replay()[0])[0]
        parts.append(logits[: min(32, step.length - first)].float().numpy().copy())
    buffers.want_rows([step.length - 1], step.length)
    return np.concatenate(parts)


def decode(
    runner: DeviceRunner, token: int, position: int, count: int, *, slot: int = 0, blocks: list[int] | None = None
) -> tuple[list[int], np.ndarray]:
    """`count` greedy tokens after `token`, and the logits each was chosen from, [count, vocab]."""
    table = list(range(runner.num_blocks)) if blocks is None else blocks
    tokens, logits = [], []
    for index in range(count):
        token = runner.decode([DecodeRow(slot, token, position + index, table, GREEDY)])[0].token
        tokens.append(token)
        logits.append(runner.target.ttnn.to_torch(runner._decode.outputs[0])[0, slot].float().numpy().copy())
    return tokens, np.stack(logits) if logits else np.empty((0, runner.vocab_size))
