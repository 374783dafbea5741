"""Prefill on the emulated device against transformers' own forward on the same CPU: interleaved pairs, one ratio each.

    python -m tests.model.bench_prefill [--pairs N] [--tokens 2048 8192] [--threads 2]

Exit code 1 when the median ratio (transformers' time over ours) is under 1.0.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch

from tests.reference_model import GREEDY, make_runner, reference_model
from ttkern.engine.planner import plan
from ttkern.engine.runner_protocol import PrefillCall
from ttkern.targets import open_target

SHAPE = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "max_position_embeddings": 16384,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    model = reference_model(SHAPE)
    target = open_target("emulated", exact=True)
    runner = make_runner(target, model, chunk_tokens=2048, max_model_len=16384, num_blocks=256)
    blocks = list(range(256))
    slowest = 1e9
    for tokens in chosen.tokens:
        prompt = torch.randint(0, SHAPE["vocab_size"], (tokens,), generator=torch.Generator().manual_seed(0))
        steps = plan(tokens, 0, 2048, runner.buckets, runner.masked_buckets)

        def ours(prompt: torch.Tensor = prompt, steps: tuple = steps) -> None:
            for index, step in enumerate(steps):
                last = index == len(steps) - 1
                part = prompt[step.start : step.start + step.length].tolist()
                runner.prefill(
                    PrefillCall(0, step, part, blocks, index == 0, last, GREEDY if last else None, None, None)
                )
            runner.release(0)

        def theirs(prompt: torch.Tensor = prompt) -> None:
            with torch.inference_mode():
                model(prompt[None], use_cache=True, logits_to_keep=1)

        ours(), theirs()
        pairs = []
        for index in range(chosen.pairs):
            order = (ours, theirs) if index % 2 == 0 else (theirs, ours)
            spent = {}
            for run in order:
                begin = time.perf_counter()
                run()
                spent[run] = time.perf_counter() - begin
            pairs.append((spent[theirs] / spent[ours], spent[ours]))
        ratio = statistics.median(r for r, _ in pairs)
        slowest = min(slowest, ratio)
        print(
            f"{tokens:>6} tokens: {ratio:.2f}x transformers' speed (pairs {min(r for r, _ in pairs):.2f} to"
            f" {max(r for r, _ in pairs):.2f}), {statistics.median(t for _, t in pairs):.2f} s"
        )
    return 0 if slowest >= 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
