"""Loading a checkpoint onto the emulated device: what it costs in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ttkern.model.checkpoint import make_checkpoint

LOAD = """
import resource, sys
from ttkern.model.load import load_model
from ttkern.targets import open_target

target = open_target("emulated")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = load_model(sys.argv[1], target)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


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
