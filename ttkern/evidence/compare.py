"""One output against its reference: shape, dtype, finiteness, error by slice, and PCC because the field reads it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from ttkern.errors import TtkernError

TILE = 32
# A slice far smaller than the whole carries the whole's rounding noise: it is not judged on a scale below this share.
SCALE_FLOOR = 1e-3
# Fewer values than this have no RMS or correlation of their own worth the name: they are judged on the whole's scale.
MIN_VALUES = 16


class Verdict(Enum):
    """PASS: right. FAIL: wrong. BLIND: the comparison could not have told."""

    PASS = "PASS"
    FAIL = "FAIL"
    BLIND = "BLIND"

    @property
    def exit_code(self) -> int:
        return {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.BLIND: 3}[self]


@dataclass(frozen=True)
class Tolerance:
    """Limits that scale with the reference, so that outputs of size 1e-6 are judged like outputs of size 1.

    rel_rms:      RMS of the error / RMS of the reference slice.
    max_over_rms: largest |error| / (RMS + relative * |reference|), as allclose, with atol measured in RMS.
    pcc:          smallest Pearson correlation. Decides only where the slice's standard deviation is at least
                  min_spread of its RMS: in a near-constant slice it measures nothing but rounding.
    Raises TtkernError for a negative or NaN limit.
    """

    rel_rms: float
    max_over_rms: float
    pcc: float
    relative: float = 1.0
    min_spread: float = 0.25

    def __post_init__(self) -> None:
        for field, value in asdict(self).items():
            if not value >= 0 and not (field == "pcc" and value >= -1):
                raise TtkernError(f"Tolerance.{field} is {value}: must be a number >= 0 (pcc: >= -1)")
        if self.pcc > 1:
            raise TtkernError(f"Tolerance.pcc is {self.pcc}: must be at most 1")


EQUAL = Tolerance(rel_rms=0.0, max_over_rms=0.0, pcc=0.999999)
FLOAT32 = Tolerance(rel_rms=2e-5, max_over_rms=1e-4, pcc=0.99999)
BFLOAT16 = Tolerance(rel_rms=0.02, max_over_rms=0.1, pcc=0.999)
BFLOAT8_B = Tolerance(rel_rms=0.05, max_over_rms=0.25, pcc=0.998)
TOLERANCES: Mapping[str, Tolerance] = {"float32": FLOAT32, "bfloat16": BFLOAT16, "bfloat8_b": BFLOAT8_B}
# A whole model adds up its layers' rounding: looser than one op in bfloat16, and without the relative term,
# so that the limit is the largest error over the position's RMS and nothing else.
LOGITS: Mapping[str, Tolerance] = {
    "exact": Tolerance(rel_rms=5e-5, max_over_rms=1e-4, pcc=0.99999, relative=0.0, min_spread=0.01),
    "bfloat16": Tolerance(rel_rms=0.15, max_over_rms=0.75, pcc=0.99, relative=0.0, min_spread=0.01),
}


@dataclass(frozen=True)
class Finding:
    """What one comparison saw. Each figure is the worst over all slices; None: not measured (pcc: undefined)."""

    ok: bool
    reasons: tuple[str, ...]
    worst_slice: str | None = None
    rel_rms: float | None = None
    max_over_rms: float | None = None
    pcc: float | None = None
    max_ulp: float | None = None
    slices: int = 0
    output: str = "output"
    seed: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an infinite figure (an error where the reference is all zero) becomes None."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}


def tails(shape: torch.Size) -> dict[str, tuple[Any, ...]]:
    """Index of the last row, last 32-row tile and last 32-column tile: where padding leaks and tiles get lost."""
    index: dict[str, tuple[Any, ...]] = {}
    if len(shape) >= 2:
        index["last row"] = (..., slice(shape[-2] - 1, None), slice(None))
        index["last row tile"] = (..., slice((shape[-2] - 1) // TILE * TILE, None), slice(None))
    if len(shape) >= 1:
        index["last column tile"] = (..., slice((shape[-1] - 1) // TILE * TILE, None))
    return index


def rms(tensor: Tensor) -> float:
    real = tensor if tensor.is_floating_point() else tensor.double()
    return torch.linalg.vector_norm(real, dtype=torch.float64).item() / math.sqrt(tensor.numel())


def check(
    got: Any,
    want: Any,
    *,
    tolerance: Tolerance = BFLOAT16,
    slices: Mapping[str, int] | None = None,
    dtype: torch.dtype | None = None,
    full: bool = True,
) -> Finding:
    """Compare one output with its reference, as a whole and slice by slice.

    got, want: torch tensors or numpy arrays of the same shape, any rank. Integers must be equal.
    slices:    name -> axis; every index of the axis is judged on its own ({"head": 1, "token": 2}). The last row, the
               last 32-row tile and the last 32-column tile always are.
    dtype:     the dtype `got` must have; None: any of the reference's kind (floating or integer).
    full:      False stops at the first group of slices that fails.
    Raises TtkernError for a slice axis that the reference does not have.
    """
    got, want = torch.as_tensor(got).detach().cpu(), torch.as_tensor(want).detach().cpu()
    for name, axis in (slices or {}).items():
        if not -want.ndim <= axis < want.ndim:
            raise TtkernError(f"slice {name!r} names axis {axis}: the reference has {want.ndim} axes")
    if reasons := _unlike(got, want, dtype):
        return Finding(ok=False, reasons=reasons)
    if not want.is_floating_point():
        tolerance = EQUAL
    max_ulp = _max_ulp(got, want) if full and got.dtype == torch.bfloat16 else None
    limits = {"rel_rms": tolerance.rel_rms, "max_over_rms": tolerance.max_over_rms, "pcc": 1 - tolerance.pcc}
    worst: dict[str, tuple[float, str]] = {}
    whole, count = rms(want), 0
    for name, got_rows, want_rows in _views(got, want, slices or {}):
        count += len(got_rows)
        for measure, errors in _measure(got_rows, want_rows, whole, tolerance).items():
            row = int(errors.argmax())
            if errors[row] > worst.get(measure, (-1.0, ""))[0]:
                worst[measure] = (errors[row].item(), f"{name} {row}" if len(got_rows) > 1 else name)
        if not full and any(error > limits[measure] for measure, (error, _) in worst.items()):
            break
    figures: dict[str, Any] = {m: 1 - error if m == "pcc" else error for m, (error, _) in worst.items()}
    reasons = tuple(
        f"{measure} {figures[measure]:.6g} in {where}, limit {getattr(tolerance, measure):.6g}"
        for measure, (error, where) in worst.items()
        if error > limits[measure]
    )
    closest = max(worst, key=lambda m: worst[m][0] / limits[m] if limits[m] else worst[m][0] * 1e300)
    return Finding(not reasons, reasons, worst[closest][1], **figures, max_ulp=max_ulp, slices=count)


def check_logits(got: Any, want: Any, *, mode: str) -> Finding:
    """Compare logits [..., vocab] position by position, in `mode` "exact" (float32 arithmetic) or "bfloat16"."""
    if mode not in LOGITS:
        raise TtkernError(f"logits mode {mode!r} is unknown: {' or '.join(LOGITS)}")
    got, want = torch.as_tensor(got), torch.as_tensor(want)
    if got.shape == want.shape and want.ndim:
        got, want = got.reshape(-1, got.shape[-1]), want.reshape(-1, want.shape[-1])
    return check(got, want, tolerance=LOGITS[mode], slices={"position": 0} if want.ndim else {})


@dataclass(frozen=True)
class Agreement:
    """Tokens against the reference's logits: positions compared, positions too close to call, positions that differ."""

    compared: int
    too_close: int
    differing: tuple[int, ...]

    @property
    def verdict(self) -> Verdict:
        if not self.compared:
            return Verdict.BLIND
        return Verdict.FAIL if self.differing else Verdict.PASS


def agreement(got_tokens: Any, want_logits: Any, margin: float = 1e-3) -> Agreement:
    """Compare greedy tokens [T] with the argmax of logits [T, vocab] wherever the top two differ by more than `margin`.

    The reference must have read the same tokens: past a position that went the other way, feed it what was generated.
    Raises TtkernError when the lengths differ.
    """
    tokens, logits = torch.as_tensor(got_tokens), torch.as_tensor(want_logits).double()
    if logits.ndim != 2 or tokens.shape != logits.shape[:1]:
        raise TtkernError(
            f"tokens {list(tokens.shape)} against logits {list(logits.shape)}: must be [T] and [T, vocab]"
        )
    top = logits.topk(min(2, logits.shape[1]), dim=1)
    clear = top.values[:, 0] - top.values[:, -1] > margin if logits.shape[1] > 1 else torch.ones_like(tokens).bool()
    differing = (clear & (tokens != top.indices[:, 0])).nonzero().flatten().tolist()
    return Agreement(int(clear.sum()), int((~clear).sum()), tuple(differing))


def poisoned_like(tensor: Tensor) -> Tensor:
    """A buffer that shows every value left unwritten: NaN, or the largest integer."""
    poison = math.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max
    return torch.full_like(tensor, poison)


def _unlike(got: Tensor, want: Tensor, dtype: torch.dtype | None) -> tuple[str, ...]:
    """Why the two cannot be compared number by number; empty when they can."""
    reasons = []
    if not want.numel():
        reasons.append("the reference is empty")
    if got.shape != want.shape:
        reasons.append(f"shape {list(got.shape)}, want {list(want.shape)}")
    if dtype is not None and got.dtype != dtype:
        reasons.append(f"dtype {got.dtype}, want {dtype}")
    if got.is_complex() or got.is_floating_point() != want.is_floating_point():
        reasons.append(f"dtype {got.dtype} is not of the reference's kind, {want.dtype}")
    for name, tensor in (("the reference", want), ("the output", got)):
        if tensor.numel() and not math.isfinite(rms(tensor)) and (bad := int((~tensor.isfinite()).sum())):
            first = (~tensor.isfinite()).nonzero()[0].tolist()
            reasons.append(f"{name} holds {bad} non-finite values of {tensor.numel()}, the first at {first}")
    return tuple(reasons)


def _views(got: Tensor, want: Tensor, slices: Mapping[str, int]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(name, got [n, m], want [n, m]) in float64: n slices of m values each. The small ones come first."""
    for name, index in tails(want.shape).items():
        yield name, got[index].reshape(1, -1).double(), want[index].reshape(1, -1).double()
    yield "whole", got.reshape(1, -1).double(), want.reshape(1, -1).double()
    for name, axis in slices.items():
        n = want.shape[axis]
        yield name, got.movedim(axis, 0).reshape(n, -1).double(), want.movedim(axis, 0).reshape(n, -1).double()


def _measure(got: Tensor, want: Tensor, whole: float, tolerance: Tolerance) -> dict[str, Tensor]:
    """measure -> error [n] of n slices; that of pcc is 1 - pcc, or -1 where a slice has no correlation to speak of."""
    n = want.shape[1]
    tiny = n < MIN_VALUES
    error = got - want
    rms_error, rms_want, rms_got = (torch.linalg.vector_norm(x, dim=1) / math.sqrt(n) for x in (error, want, got))
    scale = rms_want.clamp(min=whole if tiny else SCALE_FLOOR * whole)
    mean_got, mean_want = got.mean(1), want.mean(1)
    std_got = (rms_got.square() - mean_got.square()).clamp(min=0).sqrt()
    std_want = (rms_want.square() - mean_want.square()).clamp(min=0).sqrt()
    covariance = torch.linalg.vecdot(got, want) / n - mean_got * mean_want
    # A constant output of a varying reference correlates with nothing: 0 / 0 counts as 0.
    pcc = (covariance / (std_want * std_got)).nan_to_num(0.0).clamp(-1, 1)
    return {
        "rel_rms": _ratio(rms_error, scale),
        "max_over_rms": _ratio(error.abs_(), want.abs().mul_(tolerance.relative).add_(scale[:, None])).amax(1),
        "pcc": (1 - pcc).masked_fill((std_want <= tolerance.min_spread * scale) | tiny, -1.0),
    }


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, with 0 / 0 = 0 and x / 0 = inf."""
    return torch.where(a == 0, 0.0, a / b)


def _max_ulp(got: Tensor, want: Tensor) -> float:
    """Largest error in bfloat16 units in the last place, each taken at the larger of |want| and the RMS."""
    size = want.double().abs().clamp(min=rms(want))
    ulp = torch.ldexp(torch.ones_like(size), torch.frexp(size).exponent - 8)
    return _ratio((got.double() - want.double()).abs(), ulp).max().item()
