"""One comparison: limits scale with the reference, slices are judged on their own, logits have their rules."""

import math

import numpy as np
import pytest
import torch

from ttkern.errors import TtkernError
from ttkern.evidence.compare import (
    BFLOAT8_B,
    BFLOAT16,
    EQUAL,
    FLOAT32,
    Tolerance,
    Verdict,
    agreement,
    check,
    check_logits,
    poisoned_like,
)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def block_float(x, mantissa_bits=7, block=16):
    """Round to a shared exponent per 16 values of a row, as a block float does."""
    rows = x.reshape(*x.shape[:-1], -1, block)
    exponent = torch.frexp(rows.abs().amax(-1, keepdim=True)).exponent
    step = torch.ldexp(torch.ones_like(rows), exponent - mantissa_bits)
    return (torch.round(rows / step) * step).reshape(x.shape)


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e8])
def test_block_float_rounding_passes_its_own_limits_and_not_float32s(scale):
    x = normal(1, 4, 300, 64) * scale
    slices = {"head": 1, "token": 2}
    assert check(block_float(x), x, tolerance=BFLOAT8_B, slices=slices).ok
    assert not check(block_float(x), x, tolerance=FLOAT32, slices=slices).ok


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e8])
def test_a_float32_matmul_passes_against_float64(scale):
    a, b = normal(64, 4096), normal(4096, 64, seed=1) * scale
    assert check(a @ b, (a.double() @ b.double()).float(), tolerance=FLOAT32, slices={"token": 0}).ok


def test_a_bfloat16_matmul_with_a_bfloat16_result_passes():
    a, b = normal(64, 2048), normal(2048, 96, seed=1)
    assert check(a.bfloat16() @ b.bfloat16(), a @ b, slices={"token": 0}, dtype=torch.bfloat16).ok


def test_a_small_wrong_head_is_seen_beside_large_ones_and_named():
    want = normal(1, 4, 32, 64) * torch.tensor([1.0, 1.0, 0.01, 1.0]).reshape(1, 4, 1, 1)
    got = want.clone()
    got[:, 2] = 0
    assert check(got, want).ok  # unseen in the whole: that is what slices are for
    finding = check(got, want, slices={"head": 1})
    assert not finding.ok
    assert finding.worst_slice == "head 2"


@pytest.mark.parametrize("shape", [(1, 2, 2048, 512), (1, 1, 4096, 32)])
@pytest.mark.parametrize("dim", [-1, -2])
def test_a_last_tile_that_is_slightly_off_is_seen_in_a_large_output(shape, dim):
    want = normal(*shape)
    got = want.clone()
    got.narrow(dim, want.shape[dim] - 32, 32).mul_(1.05)
    finding = check(got, want)
    assert not finding.ok
    if want.shape[-1] > 32:
        assert "last" in finding.worst_slice


def test_a_zero_slice_must_stay_small_against_the_whole():
    want = normal(1, 4, 32, 64)
    want[:, 1] = 0
    assert check(want, want, slices={"head": 1}).ok
    leaked = want.clone()
    leaked[:, 1] += 1e-3
    finding = check(leaked, want, slices={"head": 1})
    assert not finding.ok
    assert finding.worst_slice == "head 1"


def test_one_value_has_no_scale_of_its_own():
    want = torch.tensor([1.0, -1.0, 1e-4, 1.0])
    rounding = torch.tensor([0.0, 0.0, 1e-3, 0.0])
    assert check(want + rounding, want, slices={"token": 0}).ok
    assert not check(want + 200 * rounding, want, slices={"token": 0}).ok


def test_a_zero_reference_allows_no_error_at_all():
    zero = torch.zeros(4, 32)
    assert check(zero, zero, tolerance=FLOAT32).ok
    finding = check(zero + 1e-30, zero, tolerance=FLOAT32)
    assert not finding.ok
    assert finding.as_dict()["rel_rms"] is None


def test_correlation_does_not_decide_where_the_reference_is_constant():
    want = torch.full((4, 32), 5.0)
    noisy = want * (1 + 1e-3 * normal(4, 32))
    finding = check(noisy, want)
    assert finding.ok
    assert finding.pcc is None
    assert not check(want * 1.1, want).ok


def test_correlation_decides_where_the_other_limits_are_wide():
    want = normal(4, 64)
    finding = check(want + 0.3 * normal(4, 64, seed=1), want, tolerance=Tolerance(9.0, 9.0, 0.999))
    assert not finding.ok
    assert finding.reasons[0].startswith("pcc")
    assert finding.pcc == pytest.approx(
        np.corrcoef(np.stack([want[-1], (want + 0.3 * normal(4, 64, seed=1))[-1]]))[0, 1], abs=0.1
    )


def test_figures_agree_with_numpy_on_the_whole():
    want, got = normal(1, 64).numpy(), normal(1, 64, seed=1).numpy()
    finding = check(got, want, tolerance=Tolerance(9, 9, -1, relative=0))
    tail = slice(32, None)
    worst = max(np.sqrt(np.mean((got - want)[:, s] ** 2) / np.mean(want[:, s] ** 2)) for s in (slice(None), tail))
    assert finding.rel_rms == pytest.approx(worst, rel=1e-6)
    assert finding.pcc == pytest.approx(
        min(np.corrcoef(got[0, s], want[0, s])[0, 1] for s in (slice(None), tail)), rel=1e-5
    )


def test_ulps_are_counted_in_bfloat16():
    want = torch.ones(1, 32)
    got = want.bfloat16()
    got[0, 3] = 1 + 2**-7
    assert check(got, want).max_ulp == 1.0
    assert check(got.float(), want).max_ulp is None


@pytest.mark.parametrize(
    ("got", "want", "said"),
    [
        (torch.zeros(2, 3), torch.zeros(3, 2), "shape"),
        (torch.zeros(2, 3).int(), torch.zeros(2, 3), "kind"),
        (torch.full((2, 3), math.nan), torch.zeros(2, 3), "holds 6 non-finite values of 6, the first at [0, 0]"),
        (torch.zeros(0), torch.zeros(0), "empty"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(got, want, said):
    finding = check(got, want)
    assert not finding.ok
    assert said in "; ".join(finding.reasons)


def test_equal_means_equal():
    x = torch.arange(64).reshape(2, 32)
    assert check(x, x, tolerance=BFLOAT16).ok
    assert not check(x + torch.eye(2, 32).long(), x, tolerance=BFLOAT16).ok
    assert check(x.float(), x.float(), tolerance=EQUAL).ok
    assert not check(x.float() * (1 + 1e-6), x.float(), tolerance=EQUAL).ok


@pytest.mark.parametrize("limit", [-1.0, math.nan])
def test_a_limit_that_is_no_limit_is_refused(limit):
    with pytest.raises(TtkernError, match=r"Tolerance\.rel_rms"):
        Tolerance(limit, 0.1, 0.99)


@pytest.mark.parametrize(("mode", "good", "bad"), [("exact", 1e-5, 3e-4), ("bfloat16", 0.01, 0.4)])
def test_logits_are_judged_position_by_position(mode, good, bad):
    want = normal(1, 5, 400)
    noise = normal(1, 5, 400, seed=1).sign()
    assert check_logits(want + good * noise, want, mode=mode).ok
    got = want + good * noise
    got[0, 3] += bad * noise[0, 3]
    finding = check_logits(got, want, mode=mode)
    assert not finding.ok
    assert finding.worst_slice == "position 3"


def test_a_logit_one_rms_off_is_refused_in_bfloat16():
    want = normal(3, 5000)
    got = want.clone()
    got[1, 77] += 1.0
    assert not check_logits(got, want, mode="bfloat16").ok


def test_an_unknown_logits_mode_is_refused():
    with pytest.raises(TtkernError, match="exact or bfloat16"):
        check_logits(normal(1, 4), normal(1, 4), mode="fp8")


def test_tokens_agree_wherever_the_reference_is_clear():
    logits = torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.0005, 0.0], [3.0, 0.0, 0.0]])
    result = agreement([2, 0, 0], logits)
    assert (result.compared, result.too_close, result.verdict) == (2, 1, Verdict.PASS)
    wrong = agreement([2, 0, 1], logits)
    assert (wrong.differing, wrong.verdict) == ((2,), Verdict.FAIL)
    assert agreement([0], logits[1:2]).verdict is Verdict.BLIND
    with pytest.raises(TtkernError, match="tokens"):
        agreement([2, 0], logits)


def test_poison_shows_what_was_not_written():
    assert poisoned_like(torch.zeros(2, 3, dtype=torch.bfloat16)).isnan().all()
    assert (poisoned_like(torch.zeros(2, dtype=torch.int32)) == 2**31 - 1).all()
