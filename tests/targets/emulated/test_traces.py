"""Traces and programs of the emulated device: what a capture may contain, what a replay does, what is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ttkern.targets import Target, open_target
from ttkern.targets.emulated import TtnnError


@pytest.fixture
def target() -> Target:
    return open_target("emulated")


def tile(target: Target, values: torch.Tensor) -> Any:
    ttnn = target.ttnn
    return ttnn.from_torch(values, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=target.device)


def capture(target: Target, body: Callable[[], Any]) -> tuple[int, Any]:
    trace = target.ttnn.begin_trace_capture(target.device, cq_id=0)
    outputs = body()
    target.ttnn.end_trace_capture(target.device, trace, cq_id=0)
    return trace, outputs


def refresh(target: Target, tensor: Any, value: float) -> None:
    ttnn = target.ttnn
    host = ttnn.from_torch(torch.full(tensor.shape, value), dtype=tensor.dtype, layout=tensor.layout)
    ttnn.copy_host_to_device_tensor(host, tensor)


def test_a_replay_reads_what_its_inputs_hold_now(target: Target) -> None:
    ttnn = target.ttnn
    x, total = tile(target, torch.zeros(32, 32)), tile(target, torch.zeros(32, 32))

    def body() -> Any:
        doubled = ttnn.multiply(x, 2.0)
        ttnn.copy(ttnn.add(total, doubled), total)
        return doubled

    trace, doubled = capture(target, body)
    for value in (1.0, 10.0, 100.0):
        refresh(target, x, value)
        ttnn.execute_trace(target.device, trace, cq_id=0, blocking=False)
        assert ttnn.to_torch(doubled).eq(2 * value).all()
    assert ttnn.to_torch(total).eq(222).all()


def test_a_capture_does_not_execute(target: Target) -> None:
    ttnn = target.ttnn
    x, y = tile(target, torch.ones(32, 32)), tile(target, torch.zeros(32, 32))
    _, output = capture(target, lambda: [ttnn.copy(x, y), ttnn.add(x, x)][1])
    assert ttnn.to_torch(y).eq(0).all()
    assert ttnn.to_torch(output).isnan().all()


@pytest.mark.parametrize("what", ["from_torch", "to_torch", "write", "read", "synchronize", "zeros", "replay", "begin"])
def test_no_host_traffic_in_a_capture(target: Target, what: str) -> None:
    ttnn, device = target.ttnn, target.device
    x = tile(target, torch.ones(32, 32))
    host = ttnn.from_torch(torch.ones(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
    other, _ = capture(target, lambda: ttnn.add(x, x))
    calls: dict[str, Callable[[], Any]] = {
        "from_torch": lambda: tile(target, torch.ones(32, 32)),
        "to_torch": lambda: ttnn.to_torch(x),
        "write": lambda: ttnn.copy_host_to_device_tensor(host, x),
        "read": lambda: ttnn.copy_device_to_host_tensor(x, host),
        "synchronize": lambda: ttnn.synchronize_device(device),
        "zeros": lambda: ttnn.zeros((32, 32), layout=ttnn.TILE_LAYOUT, device=device),
        "replay": lambda: ttnn.execute_trace(device, other),
        "begin": lambda: ttnn.begin_trace_capture(device),
    }
    trace = ttnn.begin_trace_capture(device, cq_id=0)
    with pytest.raises(TtnnError, match="capture"):
        calls[what]()
    ttnn.end_trace_capture(device, trace, cq_id=0)


def test_a_trace_whose_input_was_freed(target: Target) -> None:
    ttnn = target.ttnn
    x = tile(target, torch.ones(32, 32))
    trace, output = capture(target, lambda: ttnn.add(x, x))
    ttnn.deallocate(x)
    with pytest.raises(TtnnError, match=r"a buffer that add uses of trace .* was deallocated"):
        ttnn.execute_trace(target.device, trace)
    assert output.is_allocated()


def test_a_trace_whose_output_was_let_go(target: Target) -> None:
    ttnn = target.ttnn
    x = tile(target, torch.ones(32, 32))
    trace, output = capture(target, lambda: ttnn.add(x, x))
    del output
    with pytest.raises(TtnnError, match=r"an output of trace .* was deallocated"):
        ttnn.execute_trace(target.device, trace)


def test_a_buffer_made_after_the_capture_is_overwritten_by_the_replay(target: Target) -> None:
    """Cloning a state between replays is a known trap: the clone lies where the trace keeps an intermediate."""
    ttnn = target.ttnn
    x = tile(target, torch.ones(32, 32))
    trace, output = capture(target, lambda: ttnn.add(ttnn.add(x, x), x))
    ttnn.execute_trace(target.device, trace)
    kept = ttnn.clone(x)
    assert ttnn.to_torch(kept).eq(1).all()
    ttnn.execute_trace(target.device, trace)
    assert ttnn.to_torch(kept).isnan().all()
    assert ttnn.to_torch(output).eq(3).all()


def test_a_buffer_made_before_the_capture_is_safe(target: Target) -> None:
    ttnn = target.ttnn
    x = tile(target, torch.ones(32, 32))
    slot = ttnn.zeros((32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=target.device)
    trace, _output = capture(target, lambda: ttnn.add(ttnn.add(x, x), x))
    ttnn.copy(x, slot)
    ttnn.execute_trace(target.device, trace)
    assert ttnn.to_torch(slot).eq(1).all()


def test_a_released_trace_is_gone(target: Target) -> None:
    ttnn = target.ttnn
    x = tile(target, torch.ones(32, 32))
    trace, _output = capture(target, lambda: ttnn.add(x, x))
    ttnn.release_trace(target.device, trace)
    with pytest.raises(TtnnError, match="no trace"):
        ttnn.execute_trace(target.device, trace)


def test_traces_fit_the_region_or_are_refused() -> None:
    target = open_target("emulated", trace_region_size=8192)
    ttnn = target.ttnn
    x = tile(target, torch.ones(32, 32))
    trace = ttnn.begin_trace_capture(target.device)
    for _ in range(3):
        ttnn.add(x, x)
    with pytest.raises(TtnnError, match="trace region of 8192 B"):
        ttnn.end_trace_capture(target.device, trace)


def test_misses_can_be_forbidden(target: Target) -> None:
    ttnn, device = target.ttnn, target.device
    x, wide = tile(target, torch.ones(32, 32)), tile(target, torch.ones(32, 64))
    ttnn.add(x, x)
    entries = device.num_program_cache_entries()
    device.set_program_cache_misses_allowed(False)
    ttnn.add(x, x)
    with pytest.raises(TtnnError, match="program cache miss"):
        ttnn.add(wide, wide)
    with pytest.raises(TtnnError, match="program cache miss"):
        ttnn.add(x, x, activations=[ttnn.UnaryOpType.SILU])
    assert device.num_program_cache_entries() == entries


def test_counters_tell_what_was_spent(target: Target) -> None:
    ttnn, device = target.ttnn, target.device
    x = tile(target, torch.ones(32, 32))
    ttnn.add(x, x)
    trace, output = capture(target, lambda: ttnn.add(x, x))
    start = device.counters()
    refresh(target, x, 5.0)
    ttnn.execute_trace(device, trace)
    ttnn.to_torch(output)
    spent = device.counters() - start
    assert (spent.host_writes, spent.host_write_bytes) == (1, 2048)
    assert (spent.trace_replays, spent.host_reads) == (1, 1)
    assert (spent.allocations, spent.programs_compiled, spent.eager_calls) == (0, 0, 0)


def test_replay_equals_eager_bit_for_bit(target: Target) -> None:
    ttnn = target.ttnn
    generator = torch.Generator().manual_seed(0)
    x = tile(target, torch.randn(64, 96, generator=generator))
    w = tile(target, torch.randn(96, 33, generator=generator))

    def body() -> Any:
        return ttnn.multiply(ttnn.linear(x, w), 0.3, input_tensor_a_activations=[ttnn.UnaryOpType.SILU])

    eager = ttnn.to_torch(body())
    trace, output = capture(target, body)
    ttnn.execute_trace(target.device, trace)
    assert torch.equal(ttnn.to_torch(output), eager)
