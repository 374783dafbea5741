"""Loading a checkpoint folder onto the emulated device: the same model as transformers loads, and its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.reference_model import prefill, whole
from ttkern.engine.runner import DeviceRunner, RunnerConfig
from ttkern.model.checkpoint import make_checkpoint
from ttkern.model.load import load_model
from ttkern.targets import open_target

LOAD = """
import resource, sys
from ttkern.model.load import load_model
from ttkern.targets import open_target

target = open_target("emulated")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = load_model(sys.argv[1], target)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


FOLDERS: dict[str, dict[str, Any]] = {
    "one file": {},
    "shards": {"shards": 3},
    "float32": {"dtype": "float32"},
    "tied": {"tie_word_embeddings": True},
    "vision and MTP left out": {
        "extra_tensors": {"model.visual.patch.weight": torch.ones(3), "mtp.norm.weight": torch.ones(3)}
    },
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_the_model_that_transformers_loads(folder: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers.models.qwen3_5", reason="transformers here has no Qwen3.5")
    from transformers import Qwen3_5ForCausalLM

    make_checkpoint(tmp_path / "m", hidden_size=64, intermediate_size=96, num_hidden_layers=4, **FOLDERS[folder])
    loaded = load_model(tmp_path / "m", open_target("emulated", exact=True), max_model_len=512)
    assert sum(loaded.skipped.values()) == len(FOLDERS[folder].get("extra_tensors", {}))
    runner = DeviceRunner(loaded.decoder, RunnerConfig(max_model_len=512, chunk_tokens=256, num_blocks=8))
    runner.start()
    tokens = torch.randint(0, 700, (100,), generator=torch.Generator().manual_seed(0)).tolist()
    got, _ = prefill(runner, tokens, whole(100))
    model = Qwen3_5ForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32).eval()
    with torch.no_grad():
        want = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    assert np.abs(got - want).max() <= 1e-4 * np.sqrt((want**2).mean())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts kilobytes on Linux only")
def test_weights_are_held_once(tmp_path: Path) -> None:
    """Peak growth of the whole process, file pages included, for a checkpoint of about 1 GB in bfloat16."""
    folder = tmp_path / "m"
    make_checkpoint(
        folder,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=16,
        layer_types=(*["linear_attention"] * 3, "full_attention") * 4,
        vocab_size=81920,
        num_attention_heads=8,
        head_dim=128,
        linear_num_key_heads=8,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        max_position_embeddings=4096,
    )
    size = (folder / "model.safetensors").stat().st_size
    assert size > 0.9e9
    done = subprocess.run([sys.executable, "-c", LOAD, str(folder)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1.3 * size
