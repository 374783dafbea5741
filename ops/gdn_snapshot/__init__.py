"""Snapshots of GDN states: kept on the host or the device, and restored."""

from functools import partial
from typing import Any

from ops.gdn_snapshot import op, reference
from ops.gdn_snapshot.cases import EXTRACT, SNAPSHOT
from ops.registry import Op, Output


def there_and_back(
    way: op.Way, ttnn: Any, recurrent_state: Any, conv_state: Any, later_recurrent: Any, later_conv: Any
) -> tuple[Any, Any]:
    """Capture, overwrite, restore."""
    states, later = [recurrent_state, conv_state], [later_recurrent, later_conv]
    kept = way.allocate(ttnn, states)
    way.capture(ttnn, states, kept)
    for source, target in zip(later, states, strict=True):
        ttnn.copy(source, target)
    way.restore(ttnn, kept, states)
    return recurrent_state, conv_state


def extract(
    ttnn: Any, recurrent_state: Any, conv_state: Any, begin: Any, end: Any, carry_rows: Any, state: Any, history: Any
) -> tuple[Any, Any]:
    """One decode row's state."""
    op.extract_row(ttnn, recurrent_state, conv_state, begin, end, carry_rows, state, history)
    return state, history


OUTPUTS = (Output("recurrent_state", {"head": 1}, dtype="float32"), Output("conv_state", {"column": 1}))
OPS = (
    Op(
        "gdn_snapshot",
        reference.snapshot,
        {name: partial(there_and_back, way) for name, way in op.WAYS.items()},
        SNAPSHOT,
        OUTPUTS,
    ),
    Op("gdn_snapshot_extract", reference.extract_row, {"slice": extract}, EXTRACT, OUTPUTS),
)
