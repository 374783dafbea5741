"""Token embedding: rows of a table by id."""

from typing import Any


def embedding(ttnn: Any, ids: Any, table: Any) -> Any:
    """Rows of `table` named by `ids`, moved without arithmetic.

    ids    [B, T] uint32, ROW_MAJOR
    table  [1, 1, vocab, D] bfloat16, ROW_MAJOR (the only dtype the real op takes)
    returns [B, T, D] bfloat16, TILE
    """
    return ttnn.embedding(ids, table, layout=ttnn.TILE_LAYOUT)


def gather_rows(ttnn: Any, rows: Any, source: Any) -> Any:
    """Rows of an activation by index: which rows is data, so one trace serves every length.

    rows    [1, N] uint32, ROW_MAJOR
    source  [1, T, D] bfloat16, ROW_MAJOR
    returns [1, N, D] bfloat16, TILE
    """
    return ttnn.embedding(rows, source, layout=ttnn.TILE_LAYOUT)
