"""Memory of the emulated device: host and device, layouts, padding, dtypes, the allocator of a p150."""

from __future__ import annotations

import math

import pytest
import torch

from ttkern.targets import Target, open_target
from ttkern.targets.emulated import TtnnError
from ttkern.targets.emulated.types import BufferType

P150_DRAM = 8 * 4_268_752_768


@pytest.fixture
def target() -> Target:
    return open_target("emulated")


def tile(target: Target, values: torch.Tensor, dtype: str = "bfloat16"):  # type: ignore[no-untyped-def]
    ttnn = target.ttnn
    return ttnn.from_torch(values, dtype=getattr(ttnn, dtype), layout=ttnn.TILE_LAYOUT, device=target.device)


def test_a_host_tensor_is_not_a_device_tensor(target: Target) -> None:
    ttnn = target.ttnn
    host = ttnn.from_torch(torch.ones(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
    assert host.storage_type() is ttnn.StorageType.HOST
    with pytest.raises(TtnnError, match="lies on the host"):
        ttnn.add(host, host)


def test_tensors_of_two_devices_do_not_meet(target: Target) -> None:
    other = open_target("emulated")
    with pytest.raises(TtnnError, match="different devices"):
        target.ttnn.add(tile(target, torch.ones(32, 32)), tile(other, torch.ones(32, 32)))


def test_shapes_are_padded_to_tiles(target: Target) -> None:
    t = tile(target, torch.ones(3, 5, 33))
    assert (t.shape, t.padded_shape) == ((3, 5, 33), (3, 32, 64))
    row_major = target.ttnn.to_layout(t, target.ttnn.ROW_MAJOR_LAYOUT)
    assert row_major.padded_shape == (3, 5, 33)


@pytest.mark.parametrize("poison", [math.nan, 7.0])
def test_padding_holds_poison(poison: float) -> None:
    target = open_target("emulated", poison=poison)
    data = tile(target, torch.zeros(5, 33)).cell.data
    assert data[:5, :33].eq(0).all()
    outside = torch.cat([data[5:].flatten(), data[:5, 33:].flatten()])
    assert outside.isnan().all() if math.isnan(poison) else outside.eq(poison).all()


def test_an_op_that_moves_whole_tiles_carries_the_poison_along(target: Target) -> None:
    ttnn = target.ttnn
    cache = ttnn.zeros((2, 1, 32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=target.device)
    table = ttnn.from_torch(torch.zeros(1, 8), dtype=ttnn.int32, device=target.device)
    ttnn.experimental.paged_fill_cache(cache, tile(target, torch.ones(1, 1, 20, 32)), table, batch_idx=0)
    block = ttnn.to_torch(cache)[0, 0]
    assert block[:20].eq(1).all()
    assert block[20:].isnan().all()


def test_what_was_never_written_is_poison(target: Target) -> None:
    ttnn = target.ttnn
    empty = ttnn.empty((32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=target.device)
    assert ttnn.to_torch(empty).isnan().all()


def test_values_are_rounded_to_the_declared_dtype(target: Target) -> None:
    values = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(target.ttnn.to_torch(tile(target, values)), values.to(torch.bfloat16))
    assert torch.equal(target.ttnn.to_torch(tile(target, values, "float32")), values)
    narrow = target.ttnn.to_torch(tile(target, values, "bfloat8_b"))
    assert 0 < (narrow - values).abs().max() < 0.05


def test_exact_mode_rounds_nothing() -> None:
    target = open_target("emulated", exact=True)
    values = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
    for dtype in ("bfloat16", "bfloat8_b", "bfloat4_b", "float32"):
        t = tile(target, values, dtype)
        assert t.dtype is getattr(target.ttnn, dtype)
        assert torch.equal(target.ttnn.to_torch(t), values)


def test_block_floats_exist_in_tiles_only(target: Target) -> None:
    ttnn = target.ttnn
    with pytest.raises(TtnnError, match="TILE layout only"):
        ttnn.from_torch(torch.ones(32, 32), dtype=ttnn.bfloat8_b, layout=ttnn.ROW_MAJOR_LAYOUT, device=target.device)


def test_use_after_deallocate(target: Target) -> None:
    ttnn = target.ttnn
    t = tile(target, torch.ones(32, 32))
    ttnn.deallocate(t)
    for use in (lambda: ttnn.add(t, t), lambda: ttnn.to_torch(t), lambda: ttnn.deallocate(t)):
        with pytest.raises(TtnnError, match="was deallocated"):
            use()


def test_deallocating_a_view_frees_what_it_views(target: Target) -> None:
    ttnn = target.ttnn
    t = tile(target, torch.ones(1, 64, 32))
    view = ttnn.reshape(t, (1, 1, 64, 32))
    ttnn.deallocate(view)
    with pytest.raises(TtnnError, match="was deallocated"):
        ttnn.add(t, t)


def test_a_reshape_that_moves_data_has_a_buffer_of_its_own(target: Target) -> None:
    ttnn = target.ttnn
    values = torch.arange(3 * 64.0).reshape(1, 3, 64)
    t = tile(target, values)
    moved = ttnn.reshape(t, (3, 2, 32))
    ttnn.deallocate(t)
    assert torch.equal(ttnn.to_torch(moved).float(), values.reshape(3, 2, 32))


def test_memory_runs_out_where_a_p150_has_no_more(target: Target) -> None:
    ttnn = target.ttnn

    def one_long_row() -> object:
        """A row is a page, so 1 GiB of it takes that range of every bank."""
        return ttnn.zeros((1, 1 << 29), dtype=ttnn.bfloat16, device=target.device)

    held = [one_long_row() for _ in range(P150_DRAM // (8 << 30))]
    assert len(held) == 3
    with pytest.raises(TtnnError, match="out of memory: 8589934592 B of DRAM"):
        one_long_row()


def test_pages_spread_over_the_banks(target: Target) -> None:
    ttnn, dram = target.ttnn, target.device.memory[BufferType.DRAM]
    t = ttnn.zeros((1024, 1024), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=target.device)
    assert dram.in_use * 8 == 1024 * 1024 * 2
    block_float = ttnn.zeros((1024, 1024), dtype=ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT, device=target.device)
    assert dram.in_use * 8 == 1024 * 1024 * 2 + 1024 * 1088
    del t, block_float
    assert dram.in_use == 0
    assert dram.peak * 8 == 1024 * 1024 * 2 + 1024 * 1088


def test_l1_is_smaller(target: Target) -> None:
    ttnn = target.ttnn
    with pytest.raises(TtnnError, match=r"out of memory: .* of L1"):
        ttnn.zeros(
            (1, 1, 16384, 8192),
            dtype=ttnn.bfloat16,
            layout=ttnn.TILE_LAYOUT,
            device=target.device,
            memory_config=ttnn.L1_MEMORY_CONFIG,
        )


def test_freed_memory_is_used_again(target: Target) -> None:
    ttnn = target.ttnn
    first = tile(target, torch.ones(64, 64))
    assert first.lease is not None
    start = first.lease.range.start
    keep = tile(target, torch.ones(32, 32))
    ttnn.deallocate(first)
    again = tile(target, torch.ones(64, 64))
    assert again.lease is not None
    assert again.lease.range.start == start
    assert keep.is_allocated()


def test_a_refresh_must_have_the_same_spec(target: Target) -> None:
    ttnn = target.ttnn
    t = tile(target, torch.ones(32, 32))
    for values, dtype, layout in (
        (torch.ones(32, 64), ttnn.bfloat16, ttnn.TILE_LAYOUT),
        (torch.ones(32, 32), ttnn.float32, ttnn.TILE_LAYOUT),
        (torch.ones(32, 32), ttnn.bfloat16, ttnn.ROW_MAJOR_LAYOUT),
    ):
        with pytest.raises(TtnnError, match="differs"):
            ttnn.copy_host_to_device_tensor(ttnn.from_torch(values, dtype=dtype, layout=layout), t)


def test_device_tensors_come_back_into_kept_host_tensors(target: Target) -> None:
    ttnn = target.ttnn
    values = torch.randn(2, 40, 50, generator=torch.Generator().manual_seed(1))
    t = tile(target, values, "float32")
    host = ttnn.from_torch(torch.zeros(2, 40, 50), dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT)
    ttnn.copy_device_to_host_tensor(t, host)
    assert torch.equal(ttnn.to_torch(host), values)


def test_an_outputs_memory_is_its_own(target: Target) -> None:
    """A slice taken before its source is overwritten keeps the old values."""
    ttnn = target.ttnn
    state = tile(target, torch.ones(2, 32, 32))
    part = ttnn.slice(state, [0, 0, 0], [1, 32, 32])
    ttnn.copy(tile(target, torch.zeros(2, 32, 32)), state)
    assert ttnn.to_torch(part).eq(1).all()


def test_names_that_are_not_emulated_say_so(target: Target) -> None:
    with pytest.raises(AttributeError, match=r"no ttnn\.conv2d"):
        _ = target.ttnn.conv2d


def test_a_closed_device_refuses(target: Target) -> None:
    t = tile(target, torch.ones(32, 32))
    target.close()
    with pytest.raises(TtnnError, match="closed"):
        target.ttnn.add(t, t)
