"""Times every variant: pytest ops/chunk_gated_delta_rule/bench.py"""

from typing import Any

import pytest

from ops.bench_support import bench, rows


@pytest.mark.parametrize(("op", "variant", "case", "target"), rows("chunk_gated_delta_rule"))
def test_bench(benchmark: Any, op: str, variant: str, case: str, target: str) -> None:
    bench(benchmark, op, variant, case, target)
