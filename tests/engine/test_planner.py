from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttkern.engine.planner import CostTable, plan
from ttkern.errors import TtkernError

CHUNK, BUCKETS, MASKED = 2048, (1024, 512, 256, 128), (128, 64, 32)
# Masked buckets up to a chunk, so that one padded step is a choice.
WIDE_MASKED = (2048, 1024, 512, 256, 128, 64, 32)
PATHS = ("traced_chunk", "traced_bucket", "masked_bucket")


def costs(launch_us: float, token_us: float = 1.0, masked_token_us: float | None = None) -> CostTable:
    tokens = dict.fromkeys(PATHS, token_us)
    tokens["masked_bucket"] = token_us if masked_token_us is None else masked_token_us
    return CostTable(dict.fromkeys(PATHS, launch_us), tokens)


cost_tables = st.none() | st.builds(
    CostTable,
    st.fixed_dictionaries({path: st.floats(0, 1e5) for path in PATHS}),
    st.fixed_dictionaries({path: st.floats(0, 100) for path in PATHS}),
)


def shape(steps) -> list[tuple[str, int, int]]:
    return [(step.path, step.length, step.bucket) for step in steps]


def total_ns(steps, table: CostTable) -> int:
    return sum(table.step_ns(step.path, step.bucket) for step in steps)


@pytest.mark.parametrize(
    ("prompt_tokens", "expected"),
    [
        (1, [("masked_bucket", 1, 32)]),
        (33, [("masked_bucket", 33, 64)]),
        (128, [("traced_bucket", 128, 128)]),
        (2047, [("traced_bucket", b, b) for b in BUCKETS] + [("masked_bucket", 127, 128)]),
        (2048, [("traced_chunk", 2048, 2048)]),
        (2049, [("traced_chunk", 2048, 2048), ("masked_bucket", 1, 32)]),
        (
            5500,
            [("traced_chunk", 2048, 2048)] * 2
            + [("traced_bucket", 1024, 1024), ("traced_bucket", 256, 256), ("masked_bucket", 124, 128)],
        ),
    ],
)
def test_chunks_then_exact_buckets_then_one_masked(prompt_tokens, expected):
    assert shape(plan(prompt_tokens, 0, CHUNK, BUCKETS, MASKED)) == expected


@settings(max_examples=300, deadline=None)
@given(data=st.data(), table=cost_tables, masked=st.sampled_from([MASKED, WIDE_MASKED]))
def test_every_plan_covers_exactly_and_keeps_to_the_grid(data, table, masked):
    prompt_tokens = data.draw(st.integers(1, 20_000))
    resume_at = data.draw(st.integers(0, (prompt_tokens - 1) // 128)) * 128
    steps = plan(prompt_tokens, resume_at, CHUNK, BUCKETS, masked, table)
    position = resume_at
    for index, step in enumerate(steps):
        assert step.start == position
        assert step.start % 128 == 0, "a step begins off the grid"
        assert 1 <= step.length <= step.bucket
        position = step.end
        if step.path == "masked_bucket":
            assert index == len(steps) - 1, "a masked step is not the last"
            assert step.bucket in masked
            assert step.bucket == min(b for b in masked if b >= step.length) or table is not None
        else:
            assert step.length == step.bucket
            assert (step.path == "traced_chunk") == (step.bucket == CHUNK)
    assert position == prompt_tokens
    assert [step.bucket for step in steps[:-1]] == sorted((step.bucket for step in steps[:-1]), reverse=True)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), table=cost_tables)
def test_a_resumed_plan_is_the_rest_of_the_cold_one(data, table):
    prompt_tokens = data.draw(st.integers(1, 10_000))
    cold = plan(prompt_tokens, 0, CHUNK, BUCKETS, WIDE_MASKED, table)
    index = data.draw(st.integers(0, len(cold) - 1))
    assert plan(prompt_tokens, cold[index].start, CHUNK, BUCKETS, WIDE_MASKED, table) == cold[index:]


@settings(max_examples=150, deadline=None)
@given(tail=st.integers(1, 2047), table=cost_tables.filter(lambda table: table is not None))
def test_the_tail_is_the_cheapest_of_all_sequences(tail, table):
    steps = plan(tail, 0, CHUNK, BUCKETS, WIDE_MASKED, table)
    # Every way to take each bucket at most so often as fits, then one masked bucket for any rest.
    options = []

    def extend(left: int, buckets: tuple[int, ...], cost: int) -> None:
        if left == 0:
            options.append(cost)
        options.extend(cost + table.step_ns("masked_bucket", b) for b in WIDE_MASKED if b >= left > 0)
        for index, bucket in enumerate(buckets):
            if bucket <= left:
                extend(left - bucket, buckets[index:], cost + table.step_ns("traced_bucket", bucket))

    extend(tail, (1024, 512, 256), 0)
    assert total_ns(steps, table) <= min(options)
    greedy = plan(tail, 0, CHUNK, BUCKETS, WIDE_MASKED)
    assert total_ns(steps, table) <= total_ns(greedy, table)


def test_dear_launches_choose_one_padded_step_and_cheap_ones_the_exact_steps():
    assert shape(plan(1900, 0, CHUNK, BUCKETS, WIDE_MASKED, costs(launch_us=1000))) == [("masked_bucket", 1900, 2048)]
    exact = plan(1900, 0, CHUNK, BUCKETS, WIDE_MASKED)
    assert plan(1900, 0, CHUNK, BUCKETS, WIDE_MASKED, costs(launch_us=1, masked_token_us=3)) == exact


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0, CHUNK, BUCKETS, MASKED), "nothing to prefill"),
        ((256, 256, CHUNK, BUCKETS, MASKED), "nothing to prefill"),
        ((256, 64, CHUNK, BUCKETS, MASKED), "not a multiple"),
        ((100, 0, CHUNK, BUCKETS, (64, 32)), "holds 64"),
        ((100, 0, CHUNK, BUCKETS, (64, 32), costs(1)), "holds 64"),
    ],
)
def test_what_cannot_be_planned_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan(*arguments)


GOOD_TABLE = {name: dict.fromkeys(PATHS, 5.0) for name in ("launch_us", "token_us")}


def test_a_cost_table_comes_from_a_file(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(GOOD_TABLE))
    assert CostTable.from_file(path).step_ns("traced_bucket", 100) == 505_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "launch_us must give a cost for each of traced_chunk, traced_bucket, masked_bucket"),
        (json.dumps({"launch_us": GOOD_TABLE["launch_us"]}), "token_us must give a cost for each of"),
        (
            json.dumps(GOOD_TABLE | {"token_us": GOOD_TABLE["token_us"] | {"masked_bucket": -1}}),
            "masked_bucket is -1; it must be",
        ),
        (
            json.dumps(GOOD_TABLE | {"token_us": GOOD_TABLE["token_us"] | {"masked_bucket": "x"}}),
            "masked_bucket is 'x'",
        ),
    ],
)
def test_a_bad_cost_table_is_one_line(text, said, tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(TtkernError) as error:
        CostTable.from_file(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)
