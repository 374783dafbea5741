"""Times every variant: pytest ops/swiglu_mlp/bench.py"""

from typing import Any

import pytest

from ops.bench_support import bench, rows


@pytest.mark.parametrize(("op", "variant", "case", "target"), rows("swiglu_mlp"))
def test_bench(benchmark: Any, op: str, variant: str, case: str, target: str) -> None:
    bench(benchmark, op, variant, case, target)
