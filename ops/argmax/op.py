"""Index of the largest logit."""

from typing import Any


def argmax(ttnn: Any, logits: Any) -> Any:
    """Greedy choice on the device: 4 bytes a row reach the host instead of the whole vocabulary.

    logits  [1, N, vocab] float32, ROW_MAJOR
    returns [1, N] uint32, ROW_MAJOR; among equal logits, the first
    """
    return ttnn.argmax(logits, dim=-1)


def host_argmax(ttnn: Any, logits: Any) -> Any:
    """The same on the host, as torch.argmax of what was read back: int64 [1, N]."""
    return ttnn.to_torch(logits).argmax(dim=-1)
