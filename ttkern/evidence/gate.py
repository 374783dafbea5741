"""The correctness gate: it proves that it can see, then judges.

Correlation alone is blind: 3x + 5 scores 1.0, one NaN in 4,096 values 0.999998, a zeroed last tile 0.997. So the gate
first shows its own check a set of wrong outputs made from the reference. If one of them gets through, or nothing ran,
the verdict is BLIND, whatever the outputs look like.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ttkern.errors import TtkernError
from ttkern.evidence.compare import BFLOAT16, Finding, Tolerance, Verdict, check, rms
from ttkern.evidence.faults import RightOutput, planted

Inputs = TypeVar("Inputs")
Outputs = Sequence[Tensor] | Tensor
Plant = Callable[[RightOutput], Iterable[tuple[str, Tensor | str]]]

MIN_FAULTS = 5
# A fault that moves nothing by more than this share of the RMS, and is not refused, is no fault to speak of.
NEGLIGIBLE = 0.1
# Faults that only the op can make; listed as not applicable where it does not supply them.
OP_FAULTS = ("state one token late", "gate sign flipped")


@dataclass(frozen=True)
class OutputSpec:
    """One output of an op: its name, the axes judged index by index, its limits, and the dtype it must have."""

    name: str
    slices: Mapping[str, int] = field(default_factory=dict)
    tolerance: Tolerance = BFLOAT16
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Report:
    """A verdict with its evidence: one finding per output and seed, and the planted faults as "output: fault"."""

    name: str
    verdict: Verdict
    seeds: tuple[int, ...]
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    caught: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    not_applicable: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return self.verdict.exit_code

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **{k: getattr(self, k) for k in ("name", "seeds", "reasons", "caught", "missed")},
            "verdict": self.verdict.value,
            "exit_code": self.exit_code,
            "findings": [f.as_dict() for f in self.findings],
            "not_applicable": dict(self.not_applicable),
        }

    def __str__(self) -> str:
        width = max([len(f.output) for f in self.findings] + [6])
        faults = f"{len(self.caught)} caught, {len(self.missed)} missed, {len(self.not_applicable)} not applicable"
        lines = [f"{self.verdict.value}  {self.name}: {len(self.seeds)} seeds; planted faults: {faults}"]
        lines += [f"  {reason}" for reason in self.reasons]
        if self.findings:
            columns = ("rel_rms", "max_over_rms", "pcc", "max_ulp")
            lines.append(
                f"  {'output':{width}}  seed  ok   " + "  ".join(f"{c:>12}" for c in columns) + "  worst slice"
            )
        for f in self.findings:
            figures = (f.rel_rms, f.max_over_rms, f.pcc, f.max_ulp)
            row = "  ".join(f"{'-' if v is None else format(v, '.6g'):>12}" for v in figures)
            lines.append(
                f"  {f.output:{width}}  {f.seed!s:>4}  {'yes' if f.ok else 'NO':3}  {row}  {f.worst_slice or '-'}"
            )
        lines += [f"  not applicable: {fault} ({why})" for fault, why in self.not_applicable.items()]
        return "\n".join(lines)


def gate(
    run: Callable[[Inputs], Outputs],
    reference: Callable[[Inputs], Outputs],
    inputs_for_seed: Callable[[int], Inputs],
    *,
    name: str = "gate",
    seeds: Sequence[int] = (0, 1),
    outputs: Sequence[OutputSpec] | None = None,
    tolerance: Tolerance = BFLOAT16,
    slices: Mapping[str, int] | None = None,
    dtype: torch.dtype | None = None,
    faults: Plant = planted,
    supplied: Callable[[Inputs], Mapping[str, Sequence[Tensor | None]]] | None = None,
) -> Report:
    """Judge `run` against `reference` on every seed, after proving the check on planted faults.

    run, reference:  inputs -> list of torch tensors, one per output. Each call gets inputs of its own, so either may
                     change them in place. `run` must not leave its outputs to memory that held a right answer before:
                     fill it with `poisoned_like` first.
    inputs_for_seed: seed -> inputs, the same for the same seed.
    outputs:         one OutputSpec per output; None: every output gets `tolerance`, `slices` and `dtype`.
    faults:          makes the wrong outputs from a right one (`planted`).
    supplied:        inputs -> {fault name: outputs of a wrong op, None for one it leaves right}: the faults that only
                     the op knows, such as "state one token late" and "gate sign flipped".

    BLIND: fewer than two seeds; no outputs or empty ones; a reference that is not finite or the same for two seeds;
    limits that refuse the reference itself; fewer than MIN_FAULTS faults that apply; a fault that passes.
    FAIL: an output that differs, is missing or is one too many. Exceptions of `run` and `reference` pass through.
    Raises TtkernError when `outputs` names another number of outputs than the reference has.
    """
    wants = [_detached(reference(inputs_for_seed(seed))) for seed in seeds]
    specs = list(outputs) if outputs is not None else None
    if specs is None:
        count = len(wants[0]) if wants else 0
        specs = [OutputSpec(f"output {i}", slices or {}, tolerance, dtype) for i in range(count)]
    for want in wants:
        if len(want) != len(specs):
            raise TtkernError(f"{name}: the reference has {len(want)} outputs, {len(specs)} are described")
    blind = list(_unusable(specs, seeds, wants))
    if blind:
        return Report(name, Verdict.BLIND, tuple(seeds), tuple(blind))

    proof = _Proof()
    _prove_on_reference(proof, specs, wants, faults)
    for seed, want in zip(seeds, wants, strict=True):
        _prove_on_supplied(proof, specs, want, supplied(inputs_for_seed(seed)) if supplied else {})
    blind = [*proof.doubts, *(f"the check lets a planted fault through: {fault}" for fault in proof.missed)]

    findings, failed = [], []
    for seed, want in zip(seeds, wants, strict=True):
        got = _detached(run(inputs_for_seed(seed)))
        if not any(g.numel() for g in got):
            blind.append(f"nothing ran: seed {seed} gave no values")
        elif len(got) != len(specs):
            failed.append(f"seed {seed}: {len(got)} outputs, want {len(specs)}")
        for g, w, spec in zip(got, want, specs, strict=False):
            finding = replace(_check(g, w, spec, full=True), output=spec.name, seed=seed)
            findings.append(finding)
            failed += [f"{spec.name}, seed {seed}: {reason}" for reason in finding.reasons]
    return Report(
        name,
        Verdict.BLIND if blind else Verdict.FAIL if failed else Verdict.PASS,
        tuple(seeds),
        reasons=(*blind, *failed),
        findings=tuple(findings),
        caught=tuple(proof.caught),
        missed=tuple(proof.missed),
        not_applicable=proof.not_applicable(),
    )


@dataclass
class _Proof:
    """What the check made of each planted fault, over all seeds (dicts as ordered sets)."""

    caught: dict[str, None] = field(default_factory=dict)
    missed: dict[str, None] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)

    def add(self, fault: str, outputs: Sequence[tuple[Tensor, Tensor, Tensor, OutputSpec]]) -> None:
        """Show the check one fault as [(wrong, right, want, spec)]; it is caught if any of these outputs is refused."""
        if any(not _check(wrong, want, spec).ok for wrong, _, want, spec in outputs):
            self.caught[fault] = None
        elif all(_alike(wrong, right) for wrong, right, _, _ in outputs):
            self.skipped[fault] = "changes next to nothing here"
        else:
            self.missed[fault] = None

    def not_applicable(self) -> dict[str, str]:
        return {f: why for f, why in self.skipped.items() if f not in self.caught and f not in self.missed}


def _prove_on_reference(
    proof: _Proof, specs: Sequence[OutputSpec], wants: Sequence[list[Tensor]], faults: Plant
) -> None:
    """Plant faults in each output of each seed; the other seed's output is the stale one."""
    for i, spec in enumerate(specs):
        before = len(proof.caught)
        for want, other in zip(wants, [*wants[1:], wants[0]], strict=True):
            right = RightOutput(_rounded(want[i], spec), _rounded(other[i], spec), spec.slices, spec.dtype)
            control = _check(right.value, want[i], spec, full=True)
            if not control.ok:
                proof.doubts.append(f"{spec.name}: the check refuses the reference itself: {control.reasons[0]}")
            for fault, wrong in faults(right):
                if isinstance(wrong, str):
                    proof.skipped[f"{spec.name}: {fault}"] = wrong
                else:
                    proof.add(f"{spec.name}: {fault}", [(wrong, right.value, want[i], spec)])
        if len(proof.caught) - before < MIN_FAULTS:
            proof.doubts.append(f"{spec.name}: {len(proof.caught) - before} faults caught, need {MIN_FAULTS}")


def _prove_on_supplied(
    proof: _Proof, specs: Sequence[OutputSpec], want: list[Tensor], given: Mapping[str, Sequence[Tensor | None]]
) -> None:
    """Plant the faults that the op supplied; a well-known one that it did not is listed as not applicable."""
    for fault in OP_FAULTS:
        if fault not in given:
            proof.skipped[fault] = "not supplied by the op"
    for fault, wrongs in given.items():
        if len(wrongs) != len(specs):
            raise TtkernError(f"fault {fault!r} has {len(wrongs)} outputs, want {len(specs)} (None: left right)")
        proof.add(
            fault,
            [
                (_rounded(wrong, spec), _rounded(w, spec), w, spec)
                for wrong, w, spec in zip(wrongs, want, specs, strict=True)
                if wrong is not None
            ],
        )


def _unusable(specs: Sequence[OutputSpec], seeds: Sequence[int], wants: Sequence[list[Tensor]]) -> Iterator[str]:
    """Why these references cannot tell right from wrong."""
    if len(seeds) < 2:
        yield f"{len(seeds)} seeds, need 2"
    elif not specs:
        yield "nothing ran: the reference has no outputs"
    for i, spec in enumerate(specs):
        values = [want[i] for want in wants]
        if any(not v.numel() for v in values):
            yield f"nothing ran: the reference of {spec.name} is empty"
        elif any(not v.isfinite().all() for v in values):
            yield f"the reference of {spec.name} holds non-finite values"
        elif any(a.shape == b.shape and torch.equal(a, b) for k, a in enumerate(values) for b in values[:k]):
            yield f"the reference of {spec.name} is the same for two seeds: inputs ignored, or not varied"


def _check(got: Tensor, want: Tensor, spec: OutputSpec, full: bool = False) -> Finding:
    return check(got, want, tolerance=spec.tolerance, slices=spec.slices, dtype=spec.dtype, full=full)


def _alike(wrong: Tensor, right: Tensor) -> bool:
    if wrong.shape != right.shape or wrong.dtype != right.dtype or not wrong.isfinite().all():
        return False
    return (wrong.double() - right.double()).abs().max().item() <= NEGLIGIBLE * rms(right)


def _rounded(want: Tensor, spec: OutputSpec) -> Tensor:
    return want if spec.dtype is None else want.to(spec.dtype)


def _detached(outputs: Outputs) -> list[Tensor]:
    """Copies on the host: a call may return buffers that the next one overwrites."""
    tensors = [outputs] if isinstance(outputs, Tensor) else outputs
    return [torch.as_tensor(t).detach().cpu().clone() for t in tensors]
