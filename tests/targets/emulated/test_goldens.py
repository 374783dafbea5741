"""The emulated ops against the vendor's own torch references, `ttnn.get_golden_function`, over random shapes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttkern.targets import open_target
from ttkern.targets.emulated.dispatch import OPS

os.environ.setdefault("TT_METAL_LOGS_PATH", tempfile.mkdtemp())  # else importing it may write where the tests run
ttnn = pytest.importorskip("ttnn")

NO_GOLDEN = {"to_memory_config": "its golden returns the input: where a tensor lies has no values to compare"}
LAYOUTS = st.sampled_from(["ROW_MAJOR_LAYOUT", "TILE_LAYOUT"])


@dataclass
class On:
    """A tensor argument: on the emulated device in one call, a torch tensor in the other."""

    value: torch.Tensor
    dtype: str = "float32"
    layout: str = "TILE_LAYOUT"


@dataclass
class Call:
    """One call: arguments of both, and what only the device or only the golden is told.

    golden_args are the golden's positional arguments where it takes them in another form.
    """

    args: list[Any]
    both: dict[str, Any] = field(default_factory=dict)
    device_only: dict[str, Any] = field(default_factory=dict)
    golden_only: dict[str, Any] = field(default_factory=dict)
    golden_args: list[Any] | None = None


Draw = Callable[[st.SearchStrategy[Any]], Any]
dims = st.integers(1, 70)


def normal(draw: Draw, *shape: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return torch.randn(shape, generator=generator) * scale


def broadcast(draw: Draw, shape: list[int], count: int) -> list[On]:
    """Tensors of a shape, any axis of any of them 1."""
    return [On(normal(draw, *(1 if draw(st.booleans()) else n for n in shape))) for _ in range(count)]


def binary(draw: Draw) -> Call:
    args = broadcast(draw, [draw(st.integers(1, 3)), draw(dims), draw(dims)], 2)
    parameters: dict[str, tuple[float, ...]] = {"SIGMOID": (), "SILU": (), "SOFTPLUS": (1.0, 20.0)}
    names = draw(st.lists(st.sampled_from(list(parameters)), max_size=2))
    where = draw(st.sampled_from(["activations", "input_tensor_a_activations", "input_tensor_b_activations"]))
    on, off = (
        [library.UnaryWithParam(getattr(library.UnaryOpType, n), *parameters[n]) for n in names]
        for library in (open_target("emulated").ttnn, ttnn)
    )
    return Call(args, {}, {where: on}, {where: off}) if names else Call(args)


def whole(draw: Draw) -> Call:
    """int32, products within the 24 bits that float32 keeps."""
    shape, generator = (draw(dims), draw(dims)), torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return Call([On(torch.randint(-4095, 4096, shape, generator=generator), "int32") for _ in range(2)])


def scalar(draw: Draw) -> Call:
    return Call([On(normal(draw, draw(dims), draw(dims))), draw(st.floats(-3, 3, width=32))])


def unary(draw: Draw) -> Call:
    return Call([On(normal(draw, draw(dims), draw(dims), scale=4.0))])


def addcmul(draw: Draw) -> Call:
    return Call(broadcast(draw, [draw(dims), draw(dims)], 3), {"value": draw(st.sampled_from([1.0, -0.5]))})


def where(draw: Draw) -> Call:
    """Any predicate but 0 is true, a negative one too."""
    predicate, *branches = broadcast(draw, [draw(st.integers(1, 3)), draw(dims), draw(dims)], 3)
    return Call([On(predicate.value.round()), *branches])


def typecast(draw: Draw) -> Call:
    to = draw(st.sampled_from(["float32", "int32"]))  # exact mode rounds to no float dtype
    on, off = ({"dtype": getattr(library, to)} for library in (open_target("emulated").ttnn, ttnn))
    return Call([On(normal(draw, draw(dims), draw(dims), scale=50.0))], {}, on, off)


def to_layout(draw: Draw) -> Call:
    to = getattr(open_target("emulated").ttnn, draw(LAYOUTS))
    value = On(normal(draw, draw(st.integers(1, 3)), draw(dims), draw(dims)), layout=draw(LAYOUTS))
    return Call([value], device_only={"layout": to})


def copy(draw: Draw) -> Call:
    shape = (draw(dims), draw(dims))
    return Call([On(normal(draw, *shape)) for _ in range(2)])


def reshape(draw: Draw) -> Call:
    a, b, c = draw(st.integers(1, 6)), draw(dims), draw(dims)
    shape = draw(st.sampled_from([(1, a * b, c), (a * c, b), (b, a, c), (a * b * c,), (a, -1, c)]))
    return Call([On(normal(draw, a, b, c), layout=draw(LAYOUTS)), shape])


def slice_(draw: Draw) -> Call:
    shape = [draw(st.integers(1, 4)), draw(dims), draw(dims)]
    start = [draw(st.integers(0, n - 1)) for n in shape]
    end = [draw(st.integers(lo + 1, n)) for lo, n in zip(start, shape, strict=True)]
    step = [draw(st.integers(1, 3)) for _ in shape]
    return Call([On(normal(draw, *shape), layout=draw(LAYOUTS)), start, end, step])


def concat(draw: Draw) -> Call:
    axis = draw(st.integers(0, 2))
    shape = [draw(st.integers(1, 4)), draw(dims), draw(dims)]
    parts = [[n if i != axis else draw(dims) for i, n in enumerate(shape)] for _ in range(draw(st.integers(1, 4)))]
    layout = draw(LAYOUTS)
    return Call(
        [[On(normal(draw, *part), layout=layout) for part in parts]], {"dim": draw(st.sampled_from([axis, axis - 3]))}
    )


def permute(draw: Draw) -> Call:
    shape = [draw(st.integers(1, 5)) for _ in range(2)] + [draw(dims), draw(dims)]
    axes = tuple(axis - draw(st.sampled_from([0, 4])) for axis in draw(st.permutations(range(4))))
    return Call([On(normal(draw, *shape), layout=draw(LAYOUTS)), axes])


def transpose(draw: Draw) -> Call:
    one, two = draw(st.integers(0, 2)), draw(st.integers(-3, -1))
    return Call([On(normal(draw, draw(st.integers(1, 4)), draw(dims), draw(dims))), one, two])


def linear(draw: Draw) -> Call:
    rows, inner, columns = draw(dims), draw(dims), draw(dims)
    call = matmul_of(draw, rows, inner, columns)
    if draw(st.booleans()):
        call.both["bias"] = On(normal(draw, 1, columns))
    return call


def activated(draw: Draw) -> Call:
    call = linear(draw)
    call.both["activation"] = draw(st.sampled_from(["silu", "sigmoid"]))
    return call


def matmul(draw: Draw) -> Call:
    return matmul_of(draw, draw(dims), draw(dims), draw(dims))


def matmul_of(draw: Draw, rows: int, inner: int, columns: int) -> Call:
    batch = draw(st.integers(1, 3))
    lead = draw(st.sampled_from([(), (1,), (batch,)]))
    return Call([On(normal(draw, batch, rows, inner)), On(normal(draw, *lead, inner, columns))])


def rms_norm(draw: Draw) -> Call:
    rows, width = draw(dims), draw(dims)
    both: dict[str, Any] = {"epsilon": draw(st.sampled_from([1e-6, 1e-2]))}
    for name, height in (("weight", 1), ("bias", 1), ("residual_input_tensor", rows)):
        if draw(st.booleans()):
            both[name] = On(normal(draw, height, width))
    return Call([On(normal(draw, rows, width))], both)


def sum_(draw: Draw) -> Call:
    both = {"dim": draw(st.integers(-3, 2)), "keepdim": draw(st.booleans())}
    return Call([On(normal(draw, draw(st.integers(1, 4)), draw(dims), draw(dims)))], both)


def argmax(draw: Draw) -> Call:
    value = On(normal(draw, draw(st.integers(1, 3)), draw(dims), draw(dims)), layout="ROW_MAJOR_LAYOUT")
    return Call([value], {"dim": draw(st.integers(-3, 2)), "keepdim": draw(st.booleans())})


def embedding(draw: Draw) -> Call:
    rows, width, count = draw(dims), draw(dims), draw(dims)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    ids = torch.randint(0, rows, (draw(st.integers(1, 3)), count), generator=generator)
    table = On(normal(draw, rows, width).bfloat16().float(), "bfloat16", "ROW_MAJOR_LAYOUT")
    layout = getattr(open_target("emulated").ttnn, draw(LAYOUTS))
    return Call([On(ids, "uint32", "ROW_MAJOR_LAYOUT"), table], device_only={"layout": layout})


def optional(draw: Draw, **choices: Any) -> dict[str, Any]:
    """Some of the keyword arguments."""
    return {name: value for name, value in choices.items() if draw(st.booleans())}


def delta_inputs(draw: Draw, tokens: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    key_heads, group, dim = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.sampled_from([32, 64]))
    batch, heads = draw(st.integers(1, 2)), key_heads * group
    q, k = (normal(draw, batch, tokens, key_heads, dim) for _ in range(2))
    v, state = normal(draw, batch, tokens, heads, dim), normal(draw, batch, heads, dim, dim)
    g = -torch.nn.functional.softplus(normal(draw, batch, tokens, heads))
    beta = torch.sigmoid(normal(draw, batch, tokens, heads))
    return [q, k, v, g, beta], state


def chunk_gated_delta_rule(draw: Draw) -> Call:
    """The device takes raw q and k, flat, and norms them; the golden is told to."""
    parts, state = delta_inputs(draw, 32 * draw(st.integers(1, 3)))
    return Call(
        [On(t.flatten(2)) for t in parts[:3]] + [On(t) for t in parts[3:]],
        optional(draw, initial_state=On(state), output_final_state=True, output_head_major=True, scale=0.3),
        device_only={"chunk_size": 32},
        golden_only={"use_qk_l2norm": True, "chunk_size": 32},
        golden_args=[On(t) for t in parts],
    )


def fused_recurrent_gated_delta_rule(draw: Draw) -> Call:
    parts, state = delta_inputs(draw, draw(st.integers(1, 4)))
    parts[:2] = [torch.nn.functional.normalize(t, dim=-1) for t in parts[:2]]
    return Call([On(t) for t in parts], optional(draw, initial_state=On(state), output_final_state=True, scale=0.3))


def paged(draw: Draw) -> tuple[int, int, int, int, On, On]:
    """Query heads, head width, block size, number of blocks, and K and V caches."""
    kv_heads, group, blocks = draw(st.integers(1, 2)), draw(st.integers(1, 3)), 16
    dim, block = (draw(st.sampled_from([32, 64])) for _ in range(2))
    k, v = (On(normal(draw, blocks, kv_heads, block, dim)) for _ in range(2))
    return kv_heads * group, dim, block, blocks, k, v


def row_major(values: list[Any]) -> On:
    return On(torch.tensor(values), "int32", "ROW_MAJOR_LAYOUT")


def chunked_scaled_dot_product_attention(draw: Draw) -> Call:
    heads, dim, _, blocks, k, v = paged(draw)
    tokens, start = 32 * draw(st.integers(1, 4)), 32 * draw(st.integers(0, 4))
    table = row_major([draw(st.permutations(range(blocks)))[:8]])
    both = optional(draw, scale=0.3)
    both.update(draw(st.sampled_from([{"chunk_start_idx": start}, {"chunk_start_idx_tensor": row_major([start])}])))
    return Call([On(normal(draw, 1, heads, tokens, dim)), k, v, table], both)


def paged_scaled_dot_product_attention_decode(draw: Draw) -> Call:
    """A position of -1 is a row without a sequence."""
    heads, dim, block, blocks, k, v = paged(draw)
    rows, order = draw(st.integers(1, 2)), draw(st.permutations(range(blocks)))
    table = row_major([order[8 * row : 8 * row + 8] for row in range(rows)])
    positions = row_major([draw(st.just(-1) | st.integers(0, 8 * block - 1)) for _ in range(rows)])
    both = {"cur_pos_tensor": positions, **optional(draw, scale=0.3)}
    return Call([On(normal(draw, 1, rows, heads, dim)), k, v, table], both)


def plus_one(draw: Draw) -> Call:
    values = draw(st.lists(st.sampled_from([-7, -1, 0, 5, 2**31 - 2]), min_size=1, max_size=9))
    return Call([On(torch.tensor(values), "int32", "ROW_MAJOR_LAYOUT")], {"skip_negative_entries": draw(st.booleans())})


CALLS: dict[str, list[Callable[[Draw], Call]]] = {
    **{name: [binary, scalar, whole] for name in ("add", "subtract", "multiply")},
    **{name: [unary] for name in ("sigmoid", "silu", "exp", "clone")},
    "addcmul": [addcmul],
    "where": [where],
    "typecast": [typecast],
    "to_layout": [to_layout],
    "copy": [copy],
    "reshape": [reshape],
    "slice": [slice_],
    "concat": [concat],
    "permute": [permute],
    "transpose": [transpose],
    "linear": [linear, activated],
    "matmul": [matmul],
    "rms_norm": [rms_norm],
    "sum": [sum_],
    "plus_one": [plus_one],
    "argmax": [argmax],
    "embedding": [embedding],
    "transformer.chunk_gated_delta_rule": [chunk_gated_delta_rule],
    "transformer.fused_recurrent_gated_delta_rule": [fused_recurrent_gated_delta_rule],
    "transformer.chunked_scaled_dot_product_attention": [chunked_scaled_dot_product_attention],
    "transformer.paged_scaled_dot_product_attention_decode": [paged_scaled_dot_product_attention_decode],
}


def find(library: Any, name: str) -> Any:
    for step in name.split("."):
        library = getattr(library, step)
    return library


def golden_of(name: str) -> Callable[..., Any] | None:
    try:
        return ttnn.get_golden_function(find(ttnn, name))
    except RuntimeError:
        return None


def each(value: Any, change: Callable[[On], Any]) -> Any:
    if isinstance(value, On):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(each(item, change) for item in value)
    if isinstance(value, dict):
        return {key: each(item, change) for key, item in value.items()}
    return value


def both(name: str, call: Call, *, exact: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What the emulated device gives, and what the golden gives on the very values that the device holds."""
    target = open_target("emulated", exact=exact)
    here = target.ttnn

    def upload(on: On) -> Any:
        dtype = on.dtype if exact or on.dtype != "float32" else "bfloat16"
        value = on.value if on.value.is_floating_point() else on.value.to(torch.int32)
        return here.from_torch(value, dtype=getattr(here, dtype), layout=getattr(here, on.layout), device=target.device)

    def held(on: On) -> torch.Tensor:
        value = here.to_torch(upload(on))
        return value.float() if value.is_floating_point() else value

    got = find(here, name)(*each(call.args, upload), **each({**call.both, **call.device_only}, upload))
    golden = golden_of(name)
    assert golden is not None
    args = call.args if call.golden_args is None else call.golden_args
    want = golden(*each(args, held), **each({**call.both, **call.golden_only}, held))
    ours, theirs = (list(result) if isinstance(result, tuple) else [result] for result in (got, want))
    return [here.to_torch(t) for t in ours], [value for value in theirs if value is not None]


@pytest.mark.parametrize(("name", "make"), [(name, make) for name, makes in CALLS.items() for make in makes])
@settings(max_examples=25)
@given(data=st.data())
def test_exact_mode_is_the_golden(name: str, make: Callable[[Draw], Call], data: Any) -> None:
    got, want = both(name, make(data.draw), exact=True)
    for ours, theirs in zip(got, want, strict=True):
        assert list(ours.shape) == list(theirs.shape)
        scale = theirs.float().abs().amax().clamp_min(1.0).item()
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=2e-5, atol=2e-5 * scale)


ROUNDED = ["add", "subtract", "multiply", "sigmoid", "silu", "exp", "addcmul", "linear", "matmul", "rms_norm", "sum"]


@pytest.mark.parametrize("name", ROUNDED)
@settings(max_examples=15)
@given(data=st.data())
def test_bfloat16_is_the_golden_rounded_once(name: str, data: Any) -> None:
    got, want = both(name, CALLS[name][0](data.draw), exact=False)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.dtype == torch.bfloat16
        # One rounding: half a unit in the last of 8 places, and what float32 sums in another order differ by.
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("to", ["bfloat16", "bfloat8_b", "bfloat4_b"])
def test_typecast_rounds_as_the_golden(to: str) -> None:
    target = open_target("emulated")
    here = target.ttnn
    value = torch.randn(2, 64, 96, generator=torch.Generator().manual_seed(0))
    tensor = here.from_torch(value, dtype=here.float32, layout=here.TILE_LAYOUT, device=target.device)
    got = here.to_torch(here.typecast(tensor, getattr(here, to)))
    if to != "bfloat16":  # the golden makes a tensor of the real library, which needs a cluster
        open_target("mock").close()
    want = ttnn.get_golden_function(ttnn.typecast)(value, dtype=getattr(ttnn, to))
    assert torch.equal(got.float(), want.float())


SIX = On(torch.arange(6.0).view(2, 3), layout="ROW_MAJOR_LAYOUT")
UINT32 = {"dtype": open_target("emulated").ttnn.uint32}, {"dtype": ttnn.uint32}
FACTORS = [On(torch.tensor([[1.0234375]])), On(torch.tensor([[1.5]]))]
SPECIAL = {
    "int32 beyond what float32 holds": ("add", Call([On(torch.tensor([[2**24 + 1]]), "int32"), 0])),
    "a negative is 0 as uint32": ("typecast", Call([On(torch.tensor([[-1.5]]))], {}, *UINT32)),
    "keepdim without dim": ("argmax", Call([SIX], {"keepdim": True})),
    "a result of rank 0 in TILE": ("sum", Call([On(SIX.value)])),
    "rounded once, after the activation": ("linear", Call(FACTORS, {"activation": "silu"})),
}


@pytest.mark.parametrize("why", SPECIAL)
def test_special_values(why: str) -> None:
    got, want = both(*SPECIAL[why], exact=False)
    assert [t.tolist() for t in got] == [w.to(t.dtype).tolist() for t, w in zip(got, want, strict=True)]


def test_every_op_has_a_golden_here_or_none_at_the_vendors() -> None:
    untested = [name for name in OPS if name not in CALLS and name not in NO_GOLDEN and golden_of(name) is not None]
    assert untested == []
    assert [name for name in (*CALLS, *NO_GOLDEN) if name not in OPS or golden_of(name) is None] == []
