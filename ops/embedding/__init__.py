"""Token embedding."""

from ops.embedding import reference
from ops.embedding.cases import CASES
from ops.embedding.op import embedding
from ops.registry import Op, Output

OPS = (
    Op(
        "embedding",
        reference.embedding,
        {"ttnn": lambda ttnn, ids, table: (embedding(ttnn, ids, table),)},
        CASES,
        (Output("rows", {"token": 1}),),
    ),
)
