"""One variant of an op under the clock: judged before, fresh inputs for every call, judged again on what it left.

As a script it is the worker of another revision's tree (see `against`): what it imports must be there too, so it asks
for little.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ops import all_ops
from ops.registry import Case, Op, make_inputs, to_device
from ttkern.errors import TtkernError
from ttkern.evidence import op_gate
from ttkern.evidence.compare import Verdict
from ttkern.evidence.gate import Report
from ttkern.targets import Target, open_target

# What a time is on each target; nothing but silicon says how long a card takes.
MEANING = {
    "emulated": "wall time of the emulated device: a CPU's, no card's",
    "mock": "host-dispatch time: writing the command queue is mocked, so a lower bound of a card's",
    "simulated": "wall time of a simulator: no card's",
    "silicon": "time on the device, waited for",
}
LEAST_SAMPLE = 2e-3  # seconds; shorter samples measure the clock
MOST_CALLS = 64
MARK = "ttkern-bench: "  # before a worker's lines, among what libraries print
TILE_BYTES = {"bfloat8_b": 1088, "bfloat4_b": 576}


@dataclass(frozen=True)
class Cost:
    """What the algorithm asks for, whatever the variant does.

    bytes  each input read once and each output written once, in the dtypes of the case
    flops  of the reference's matrix products, as torch counts them
    """

    bytes: int
    flops: int


class Timer:
    """Times calls of one variant on one target.

    Raises TtkernError where the gate refuses the variant: it is reported as wrong and never timed.
    """

    def __init__(self, target: Target, op: Op, variant: str, case: Case) -> None:
        if variant not in op.variants:
            raise TtkernError(f"{op.name} has no variant {variant!r}; it has {', '.join(op.variants)}")
        self.target, self.op, self.variant, self.case = target, op, variant, case
        self.report = judge(target, op, variant, case)
        if self.report.verdict is not Verdict.PASS:
            raise TtkernError(
                f"{op.name}/{variant}/{case.name} is not timed: {self.report.verdict.value}: "
                f"{'; '.join(self.report.reasons)}"
            )
        self._ttnn, self._variant, self._params = target.ttnn, op.variants[variant], case.params
        self._inputs = make_inputs(case, 0)
        self._last: Any = None
        begin = time.perf_counter()
        self.sample(1)
        self.first_call = time.perf_counter() - begin
        self.calls = 1
        while self.calls < MOST_CALLS and self.calls * self.sample(self.calls) < LEAST_SAMPLE:
            self.calls *= 2

    def sample(self, calls: int) -> float:
        """Seconds of a call, over so many on fresh inputs each, which are made before the clock starts."""
        made = [self.fresh() for _ in range(calls)]
        self._wait()
        begin = time.perf_counter()
        for tensors in made:
            self._last = self._variant(self._ttnn, **tensors, **self._params)
        self._wait()
        return (time.perf_counter() - begin) / calls

    def fresh(self) -> dict[str, Any]:
        """Inputs of a call of their own, on the device; one that is updated in place is then right every time."""
        ttnn, device = self._ttnn, self.target.device
        value = self._inputs.get if self.target.has_data else lambda name: None
        made = {name: to_device(ttnn, device, spec, value(name)) for name, spec in self.case.tensors.items()}
        self._wait()
        return made

    def call(self, tensors: dict[str, Any]) -> None:
        """One call, waited for where that is what a time means."""
        self._last = self._variant(self._ttnn, **tensors, **self._params)
        self._wait()

    def _wait(self) -> None:
        if self.target.has_timing:
            self._ttnn.synchronize_device(self.target.device)

    def still_right(self) -> bool | None:
        """Whether the last timed call's outputs are right; None where nothing is computed, or it cannot be told."""
        check_outputs = getattr(op_gate, "check_outputs", None)  # not in every revision
        if not self.target.computes or check_outputs is None:
            return None
        ttnn = self.target.ttnn
        got = [t if isinstance(t, torch.Tensor) else ttnn.to_torch(t) for t in self._last]
        return all(finding.ok for finding in check_outputs(self.op, self.case, got, self._inputs, exact=False))


def cost_of(op: Op, case: Case) -> Cost:
    """Bytes and FLOPs of a case."""
    moved = sum(tensor_bytes(spec.shape, spec.dtype) for spec in case.tensors.values())
    with FlopCounterMode(display=False) as counter:
        outputs = op.reference(**make_inputs(case, 0), **case.params)
    moved += sum(tensor_bytes(tuple(v.shape), o.dtype) for o, v in zip(op.outputs, outputs, strict=True))
    return Cost(moved, counter.get_total_flops())


def judge(target: Target, op: Op, variant: str, case: Case) -> Report:
    """The gate's report; on the emulated device where the target itself computes nothing."""
    if target.computes:
        return op_gate.gate_op(target, op, variant, case, exact=False)
    emulated = open_target("emulated")
    try:
        return op_gate.gate_op(emulated, op, variant, case, exact=False)
    finally:
        emulated.close()


def tensor_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Of the values, without padding; block floats by the tile."""
    count = 1
    for n in shape:
        count *= n
    if dtype in TILE_BYTES:
        return count * TILE_BYTES[dtype] // 1024
    return count * (2 if dtype in ("bfloat16", "uint16") else 4)


def serve(target_name: str, op_name: str, variant: str, case_name: str) -> None:
    """Answer on stdout, a JSON line each: first what was set up; then seconds for every number of calls on stdin; when
    that ends, whether the last output is right."""
    torch.set_num_threads(1)
    try:
        op = all_ops()[op_name]
        timer = Timer(open_target(target_name), op, variant, op.case(case_name))
    except (TtkernError, KeyError) as error:
        _say({"error": str(error.args[0])})
        return
    _say({"calls": timer.calls, "first_call": timer.first_call, "gate": timer.report.as_dict()})
    for line in sys.stdin:
        _say({"seconds": timer.sample(int(line))})
    _say({"right": timer.still_right()})


def _say(what: dict[str, Any]) -> None:
    print(f"{MARK}{json.dumps(what)}", flush=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
