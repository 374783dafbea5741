from __future__ import annotations

import pytest

from ttkern.engine.kv_pool import KVPool


def test_every_block_is_given_once_until_the_pool_is_empty():
    pool = KVPool(num_blocks=5, block_size=64)
    first, rest = pool.allocate(), pool.allocate(4)
    assert sorted([*first, *rest]) == list(range(5))
    assert (pool.num_free, pool.num_used) == (0, 5)
    with pytest.raises(RuntimeError, match="1 KV blocks asked for, 0 of 5"):
        pool.allocate()
    pool.free(rest)
    assert (pool.num_free, pool.num_used) == (4, 1)
    pool.check_integrity()


def test_a_block_freed_twice_is_an_error():
    pool = KVPool(num_blocks=3, block_size=64)
    blocks = pool.allocate(2)
    pool.free(blocks)
    with pytest.raises(RuntimeError, match="it is free"):
        pool.free(blocks[:1])


def test_a_lost_block_and_one_that_is_free_twice_are_found():
    pool = KVPool(num_blocks=3, block_size=64)
    pool._free.pop()
    with pytest.raises(RuntimeError, match="2 free"):
        pool.check_integrity()
    pool._free.append(pool._free[0])
    with pytest.raises(RuntimeError, match="1 of them twice"):
        pool.check_integrity()


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (64, 1), (65, 2)])
def test_blocks_for_tokens(tokens, blocks):
    assert KVPool(num_blocks=3, block_size=64).blocks_for(tokens) == blocks
