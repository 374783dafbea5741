"""One token of each sequence: the same recurrence as over a run of tokens."""

from ops.chunk_gated_delta_rule.reference import recurrent

__all__ = ["recurrent"]
