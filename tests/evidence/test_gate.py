"""The gate refuses what is wrong, passes honest rounding, and says so when it cannot see."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ttkern.evidence.gate as gate_module
from ttkern.errors import TtkernError
from ttkern.evidence.compare import BFLOAT16, EQUAL, FLOAT32, Finding, Tolerance, Verdict
from ttkern.evidence.faults import RightOutput, planted
from ttkern.evidence.gate import OutputSpec, gate

SHAPES = [(1,), (7,), (33, 1), (1, 33), (2, 3), (1, 3, 32, 32), (1, 4, 65, 40), (1, 1, 300, 64), (2, 2, 2, 16)]
ROUNDED = [(torch.float32, FLOAT32), (torch.bfloat16, BFLOAT16)]


def normal(shape, scale=1.0, mean=0.0):
    return lambda seed: (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + mean) * scale


def axes(shape):
    return {"head": 1, "token": 2} if len(shape) == 4 else {"token": 0}


def identity_gate(shape, run, scale=1.0, dtype=torch.bfloat16, tolerance=BFLOAT16, **options):
    options = {"slices": axes(shape), "dtype": dtype, "tolerance": tolerance, **options}
    return gate(run, lambda x: [x], normal(shape, scale), **options)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(SHAPES) | st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple),
    kind=st.sampled_from(ROUNDED),
    scale=st.sampled_from([1.0, 1e-6, 1e6, 1e-20]),
    seed=st.integers(0, 10_000),
    mean=st.sampled_from([0.0, 3.0]),
)
def test_every_planted_fault_is_refused_at_every_shape_and_size(shape, kind, scale, seed, mean):
    dtype, tolerance = kind
    slices = {"axis": 0} if len(shape) == 1 else axes(shape) if len(shape) == 4 else {"token": -2}
    report = gate(
        lambda x: [x.to(dtype)],
        lambda x: [x],
        normal(shape, scale, mean),
        seeds=(seed, seed + 1),
        slices=slices,
        dtype=dtype,
        tolerance=tolerance,
    )
    assert report.verdict is Verdict.PASS, str(report)
    assert not report.missed
    if math.prod(shape) >= 16:  # a handful of values may come out alike for two seeds
        assert "output 0: stale output" in report.caught
    for fault in ("zeros", "times 3", "times 3 plus 5 RMS", "one NaN", "one Inf", "one element off"):
        assert f"output 0: {fault}" in report.caught
    if len(shape) >= 2:
        assert "output 0: padding leak" in report.caught


FAULTS = [
    name for name, _ in planted(RightOutput(torch.randn(1, 4, 65, 40), torch.randn(1, 4, 65, 40), axes((0,) * 4)))
]


@pytest.mark.parametrize("scale", [1.0, 1e-6])
@pytest.mark.parametrize(("dtype", "tolerance"), ROUNDED)
@pytest.mark.parametrize("fault", FAULTS)
def test_an_op_with_a_planted_fault_fails(fault, dtype, tolerance, scale):
    stale = normal((1, 4, 65, 40), scale)(99).to(dtype)

    def broken(x):
        return [dict(planted(RightOutput(x.to(dtype), stale, axes(x.shape), dtype)))[fault]]

    report = identity_gate((1, 4, 65, 40), broken, scale, dtype, tolerance)
    assert report.verdict is Verdict.FAIL
    assert report.exit_code == 1
    assert report.reasons


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_a_few_bfloat16_roundings_pass(shape, scale):
    report = identity_gate(shape, lambda x: [((x.bfloat16() * 3) / 3)], scale)
    assert report.verdict is Verdict.PASS, str(report)
    assert all(finding.max_ulp <= 3 for finding in report.findings)


def test_the_same_rounding_fails_where_float32_is_due():
    report = identity_gate((1, 4, 65, 40), lambda x: [x.bfloat16().float()], dtype=torch.float32, tolerance=FLOAT32)
    assert report.verdict is Verdict.FAIL


def test_an_unlimited_tolerance_is_blind():
    report = identity_gate((1, 4, 65, 40), lambda x: [x.bfloat16()], tolerance=Tolerance(math.inf, math.inf, -1))
    assert report.verdict is Verdict.BLIND
    assert report.exit_code == 3
    assert "output 0: zeros" in report.missed


def test_correlation_alone_is_blind():
    report = identity_gate((1, 4, 65, 40), lambda x: [x.bfloat16()], tolerance=Tolerance(math.inf, math.inf, 0.99))
    assert report.verdict is Verdict.BLIND
    assert {"output 0: times 3", "output 0: times 3 plus 5 RMS", "output 0: one element off"} <= set(report.missed)


@pytest.mark.parametrize(
    ("ignored", "fault"),
    [("non-finite", "one NaN"), ("shape", "wrong shape"), ("dtype", "wrong dtype"), ("rel_rms", "zeros")],
)
def test_a_check_that_ignores_something_is_blind(monkeypatch, ignored, fault):
    def patched(*args, check=gate_module.check, **options):
        finding = check(*args, **options)
        return Finding(True, ()) if any(ignored in reason for reason in finding.reasons) else finding

    monkeypatch.setattr(gate_module, "check", patched)
    report = identity_gate((1, 4, 65, 40), lambda x: [x.bfloat16()])
    assert report.verdict is Verdict.BLIND
    assert f"output 0: {fault}" in report.missed


def test_a_check_that_refuses_everything_is_blind():
    report = identity_gate((1, 4, 65, 40), lambda x: [x.bfloat16()], tolerance=EQUAL)
    assert report.verdict is Verdict.BLIND
    assert "refuses the reference itself" in report.reasons[0]


@pytest.mark.parametrize("seeds", [(), (0,)])
def test_fewer_than_two_seeds_are_blind(seeds):
    assert identity_gate((4, 4), lambda x: [x.bfloat16()], seeds=seeds).verdict is Verdict.BLIND


def test_two_seeds_with_one_reference_are_blind():
    assert identity_gate((4, 4), lambda x: [x.bfloat16()], seeds=(3, 3)).verdict is Verdict.BLIND
    constant = gate(lambda x: [torch.ones(4, 4)], lambda x: [torch.ones(4, 4)], normal((4, 4)))
    assert constant.verdict is Verdict.BLIND


@pytest.mark.parametrize("nothing", [[], [torch.empty(0, 4)]])
def test_an_op_that_returns_nothing_is_blind(nothing):
    report = identity_gate((4, 4), lambda x: nothing)
    assert report.verdict is Verdict.BLIND
    assert "nothing ran" in report.reasons[0]


@pytest.mark.parametrize("nothing", [[], [torch.empty(0, 4)], [torch.full((4, 4), math.nan)], [torch.zeros(4, 4)]])
def test_a_reference_that_shows_nothing_is_blind(nothing):
    assert gate(lambda x: nothing, lambda x: nothing, normal((4, 4))).verdict is Verdict.BLIND


def test_without_enough_faults_the_gate_is_blind():
    report = identity_gate((4, 4), lambda x: [x.bfloat16()], faults=lambda right: [("zeros", right.value * 0)])
    assert report.verdict is Verdict.BLIND
    assert "1 faults caught, need 5" in report.reasons[0]


def test_a_fault_that_does_not_apply_is_listed():
    report = identity_gate((1, 1, 8, 8), lambda x: [x.bfloat16()])
    assert report.verdict is Verdict.PASS
    assert report.not_applicable["output 0: swapped head"] == "only one"
    assert report.not_applicable["gate sign flipped"] == "not supplied by the op"


@pytest.mark.parametrize("difference", [0.0, 1e-3])
def test_twin_heads_are_no_reason_to_call_the_gate_blind(difference):
    twins = lambda x: [torch.cat([x, x * (1 + difference)], 1)]  # noqa: E731
    report = gate(twins, twins, normal((1, 1, 8, 8)), slices={"head": 1})
    assert report.verdict is Verdict.PASS
    assert "output 0: swapped head" in report.not_applicable


def decay_scan(inputs, sign=1.0):
    """A miniature recurrence: outputs [T, D] and the last state [D]."""
    x, g = inputs
    states = [torch.zeros_like(x[0])]
    for t in range(len(x)):
        states.append(states[-1] * torch.exp(sign * g[t]) + x[t])
    return [torch.stack(states[1:]), states[-1]], [torch.stack(states[:-1]), states[-2]]


def scan_inputs(seed):
    x = normal((40, 32))(seed)
    return x, -x.abs() * 0.1


def scan_faults(inputs):
    _, late = decay_scan(inputs)
    return {"state one token late": late, "gate sign flipped": decay_scan(inputs, -1.0)[0]}


SCAN_OUTPUTS = [OutputSpec("o", {"token": 0}, FLOAT32), OutputSpec("state", {}, FLOAT32)]


def test_faults_that_the_op_supplies_are_proven_too():
    run = lambda x: decay_scan(x)[0]  # noqa: E731
    report = gate(run, run, scan_inputs, outputs=SCAN_OUTPUTS, supplied=scan_faults)
    assert report.verdict is Verdict.PASS, str(report)
    assert {"state one token late", "gate sign flipped"} <= set(report.caught)
    assert not any("not supplied" in why for why in report.not_applicable.values())


def test_a_supplied_fault_that_gets_through_is_blind():
    run = lambda x: decay_scan(x)[0]  # noqa: E731
    loose = [OutputSpec("o"), OutputSpec("state", tolerance=Tolerance(0.9, 0.45, 0.5))]
    late = lambda x: {"state one token late": [None, run(x)[1] + 0.3 * run(x)[1].square().mean().sqrt()]}  # noqa: E731
    report = gate(run, run, scan_inputs, outputs=loose, supplied=late)
    assert report.verdict is Verdict.BLIND
    assert report.missed == ("state one token late",)


@pytest.mark.parametrize("which", ["state one token late", "gate sign flipped"])
def test_an_op_with_a_supplied_fault_fails(which):
    report = gate(lambda x: scan_faults(x)[which], lambda x: decay_scan(x)[0], scan_inputs, outputs=SCAN_OUTPUTS)
    assert report.verdict is Verdict.FAIL


def test_integer_outputs_must_be_equal():
    tokens = lambda x: [x.argmax(-1)]  # noqa: E731
    assert gate(tokens, tokens, normal((16, 50))).verdict is Verdict.PASS
    off = gate(lambda x: [tokens(x)[0] + torch.eye(16)[3].long()], tokens, normal((16, 50)))
    assert off.verdict is Verdict.FAIL
    assert gate(lambda x: [tokens(x)[0].float()], tokens, normal((16, 50))).verdict is Verdict.FAIL


def test_outputs_in_a_reused_buffer_are_judged_as_they_were_returned():
    buffer, reference_buffer = torch.empty(4, 8, dtype=torch.bfloat16), torch.empty(4, 8)
    report = gate(lambda x: [buffer.copy_(x)], lambda x: [reference_buffer.copy_(x)], normal((4, 8)))
    assert report.verdict is Verdict.PASS, str(report)


def test_an_op_may_change_its_inputs_in_place():
    assert identity_gate((4, 8), lambda x: [x.mul_(1).bfloat16(), x.zero_()][:1]).verdict is Verdict.PASS


def test_a_missing_output_fails():
    report = gate(lambda x: [x], lambda x: [x, x + 1], normal((4, 8)))
    assert report.verdict is Verdict.FAIL
    assert "1 outputs, want 2" in report.reasons[0]


def test_wrong_descriptions_are_refused():
    with pytest.raises(TtkernError, match="1 outputs, 2 are described"):
        gate(lambda x: [x], lambda x: [x], normal((4, 8)), outputs=SCAN_OUTPUTS)
    with pytest.raises(TtkernError, match="axis 2: the reference has 2 axes"):
        gate(lambda x: [x], lambda x: [x], normal((4, 8)), slices={"head": 2})


def test_a_report_reads_as_one_aligned_block_and_as_json():
    zeroed = lambda x: [x.bfloat16().index_fill(1, torch.tensor(2), 0)]  # noqa: E731
    report = identity_gate((1, 4, 65, 40), zeroed)
    data = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert (data["verdict"], data["exit_code"]) == ("FAIL", 1)
    assert data["findings"][0]["worst_slice"] == "head 2"
    lines = str(report).splitlines()
    assert lines[0].startswith("FAIL  gate: 2 seeds")
    assert len({line.rindex("head 2") for line in lines if "  NO " in line}) == 1


def test_exit_codes_are_distinct():
    assert [verdict.exit_code for verdict in Verdict] == [0, 1, 3]
