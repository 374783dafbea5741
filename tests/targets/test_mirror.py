"""Every call of the ops and of a decoder, judged by real ttnn on the mock board while the emulated device computes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from ops import all_ops
from ops.model_shapes import SHAPES
from ops.registry import make_inputs, run_variant
from ttkern.engine.runner import DeviceRunner, RunnerConfig
from ttkern.engine.runner_protocol import DecodeRow, PrefillCall, PrefillStep, SampleSpec
from ttkern.model.checkpoint import make_checkpoint
from ttkern.model.config import ModelConfig
from ttkern.model.decoder import Decoder
from ttkern.model.device_weights import load_decoder_weights
from ttkern.model.weights import open_weights
from ttkern.targets import Target, open_target
from ttkern.targets.mirror import MirrorError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ttnn") is None, reason="ttnn is not installed here: no real library to ask"
)
GREEDY = SampleSpec(temperature=0.0, top_p=1.0, top_k=0, seed=0, step=0, logprobs=None, forbidden=())
ROWS = [(op, variant, case) for op in all_ops().values() for variant in op.variants for case in op.cases]


@pytest.mark.parametrize(
    ("op", "variant", "case"),
    [pytest.param(*row, id=f"{row[0]}-{row[1]}-{row[2].name}") for row in ROWS if row[2].name in ("tiny", "small")],
)
def test_each_case_of_each_op(op: Any, variant: str, case: Any) -> None:
    target = open_target("mirror")
    inputs = make_inputs(case, 0)
    got = run_variant(target, op, variant, case, inputs)
    target.close()
    alone = run_variant(open_target("emulated"), op, variant, case, inputs)
    assert all(torch.equal(a, b) for a, b in zip(got, alone, strict=True)), "being watched changed the numbers"


@pytest.fixture(scope="module", params=["tiny", "small"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = SHAPES[request.param]
    path = tmp_path_factory.mktemp("checkpoint") / request.param
    make_checkpoint(
        path,
        vocab_size=shape.vocab,
        tokenizer=False,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=4,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        linear_num_key_heads=shape.key_heads,
        linear_num_value_heads=shape.value_heads,
        linear_key_head_dim=shape.gdn_dim,
        linear_value_head_dim=shape.gdn_dim,
        partial_rotary_factor=shape.rotary_dim / shape.head_dim,
    )
    return path


def answer(target: Target, folder: Path, kv_dtype: str) -> list[int]:
    """Tokens of one prompt that takes a chunk, an exact bucket and a masked one, and of a few decode steps."""
    config = ModelConfig.from_folder(folder)
    limits = RunnerConfig(max_model_len=512, chunk_tokens=256, num_blocks=8, max_num_seqs=3, kv_cache_dtype=kv_dtype)
    weights = load_decoder_weights(target, config, open_weights(folder, config), positions=512)
    runner = DeviceRunner(Decoder(target, config, weights, attention_chunk=limits.attention_chunk), limits)
    runner.start()
    prompt = [(7 * i) % config.vocab_size for i in range(411)]
    steps = [
        PrefillStep("traced_chunk", 0, 256, 256),
        PrefillStep("traced_bucket", 256, 128, 128),
        PrefillStep("masked_bucket", 384, 27, 32),
    ]
    table = [5, 2, 7, 1, 0, 3, 4]
    token = -1
    for step in steps:
        last = step is steps[-1]
        part = prompt[step.start : step.end]
        result = runner.prefill(
            PrefillCall(1, step, part, table, step.start == 0, last, GREEDY if last else None, None, None)
        )
        token = result.sampled.token if result.sampled is not None else token
    tokens = [token]
    for position in range(411, 415):
        tokens.append(runner.decode([DecodeRow(1, tokens[-1], position, table, GREEDY)])[0].token)
    return tokens


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "bfloat8_b"])
def test_the_decoder_from_weights_to_decoded_tokens(folder: Path, kv_dtype: str) -> None:
    target = open_target("mirror")
    got = answer(target, folder, kv_dtype)
    target.close()
    assert got == answer(open_target("emulated"), folder, kv_dtype)


@pytest.mark.parametrize(
    ("longest", "chunk", "blocks", "rows"),
    [(1, 256, 1, 1), (65, 64, 2, 1), (300, 256, 5, 9), (1024, 128, 16, 1), (520, 64, 9, 3)],
)
def test_no_pool_is_too_small_for_real_ttnn(folder: Path, longest: int, chunk: int, blocks: int, rows: int) -> None:
    """The page table is as wide as the longest sequence, rounded up; the pool may hold fewer blocks than that."""
    target, config = open_target("mirror"), ModelConfig.from_folder(folder)
    limits = RunnerConfig(max_model_len=longest, chunk_tokens=chunk, num_blocks=blocks, max_num_seqs=rows)
    weights = load_decoder_weights(target, config, open_weights(folder, config), positions=longest)
    runner = DeviceRunner(Decoder(target, config, weights, attention_chunk=limits.attention_chunk), limits)
    runner.start()
    step = PrefillStep("masked_bucket", 0, 1, 32)
    runner.prefill(PrefillCall(0, step, [1], [0], True, True, GREEDY, None, None))
    target.close()


def plant(target: Target, name: str, function: Any) -> None:
    """Another function in place of one of the emulated ttnn's."""
    setattr(target.ttnn._real, name, function)


def test_a_call_that_real_ttnn_refuses_is_an_error() -> None:
    target = open_target("mirror")
    ttnn = target.ttnn
    plant(target, "embedding", lambda ids, table: table)
    ids = ttnn.empty((1, 32), dtype=ttnn.uint32, layout=ttnn.ROW_MAJOR_LAYOUT, device=target.device)
    table = ttnn.empty((1, 1, 64, 64), dtype=ttnn.float32, layout=ttnn.ROW_MAJOR_LAYOUT, device=target.device)
    with pytest.raises(MirrorError, match=r"real ttnn refuses embedding\(.*FLOAT32(.|\n)*BFLOAT16"):
        ttnn.embedding(ids, table)
    target.close()


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"shape": (32, 64)}, "shape is [32, 64] on the emulated device, [64, 32] in real ttnn"),
        ({"dtype": "float32"}, "dtype is FLOAT32 on the emulated device, BFLOAT16 in real ttnn"),
        ({"layout": "ROW_MAJOR_LAYOUT"}, "layout is ROW_MAJOR on the emulated device, TILE in real ttnn"),
        ({"memory_config": "L1_MEMORY_CONFIG"}, "memory is ('INTERLEAVED', 'L1', None) on the emulated device"),
    ],
)
def test_another_output_is_an_error(result: dict[str, Any], said: str) -> None:
    target = open_target("mirror")
    emulated = target.ttnn._real
    named = {k: getattr(emulated, v) if isinstance(v, str) else v for k, v in result.items()}
    made = {"shape": (64, 32), "dtype": emulated.bfloat16, "layout": emulated.TILE_LAYOUT, **named}
    plant(target, "add", lambda a, b: emulated.empty(made.pop("shape"), device=target.device, **made))
    x = target.ttnn.empty((64, 32), dtype=emulated.bfloat16, layout=emulated.TILE_LAYOUT, device=target.device)
    with pytest.raises(MirrorError) as error:
        target.ttnn.add(x, x)
    assert said in str(error.value)
    target.close()


def test_another_number_of_outputs_is_an_error() -> None:
    target = open_target("mirror")
    x = target.ttnn.empty((64, 32), dtype=target.ttnn.bfloat16, layout=target.ttnn.TILE_LAYOUT, device=target.device)
    plant(target, "add", lambda a, b: (a, b))
    with pytest.raises(MirrorError, match="add: 2 outputs on the emulated device, 1 in real ttnn"):
        target.ttnn.add(x, x)
    target.close()


def test_a_function_that_real_ttnn_lacks_is_an_error() -> None:
    target = open_target("mirror")
    plant(target, "addd", lambda a, b: a)
    with pytest.raises(MirrorError, match="real ttnn has no addd"):
        target.ttnn.addd(1, 2)
    target.close()


def test_a_shared_buffer_that_is_none_is_an_error() -> None:
    target = open_target("mirror")
    emulated = target.ttnn._real
    x = target.ttnn.empty((64, 32), dtype=emulated.bfloat16, layout=emulated.TILE_LAYOUT, device=target.device)
    reshape = emulated.reshape
    plant(target, "add", lambda a, b: reshape(a, (64, 32)))
    with pytest.raises(MirrorError, match="add, output 0: an input's memory on the emulated device, memory of its own"):
        target.ttnn.add(x, x)
    plant(target, "reshape", lambda a, shape: emulated.clone(a))
    with pytest.raises(MirrorError, match="reshape, output 0: memory of its own on the emulated device, an input's"):
        target.ttnn.reshape(x, (64, 32))
    target.close()


def test_what_is_read_is_compared() -> None:
    for wrong, said in (
        (lambda values: values.to(torch.int32), "to_torch: torch.int32 on the emulated device, torch.uint32 in real"),
        (lambda values: values[0], r"to_torch: \[32\] on the emulated device, \[2, 32\] in real ttnn"),
    ):
        target = open_target("mirror")
        x = target.ttnn.from_torch(torch.zeros(2, 32, dtype=torch.int64), device=target.device)
        read = target.ttnn._real.to_torch
        plant(target, "to_torch", lambda t, read=read, wrong=wrong: wrong(read(t)))
        with pytest.raises(MirrorError, match=said):
            target.ttnn.to_torch(x)
        target.close()


RANK4 = [(1, 1, 1, 32), (1, 1, 32, 32), (4, 1, 32, 64), (2, 3, 40, 32)]


@pytest.mark.parametrize("layout", ["TILE_LAYOUT", "ROW_MAJOR_LAYOUT"])
@pytest.mark.parametrize("shape", RANK4)
def test_where_nothing_changes_both_return_the_same_memory(shape: tuple[int, ...], layout: str) -> None:
    """The mirror compares whose memory an output lies in; here it does for whatever may change nothing."""
    target = open_target("mirror")
    ttnn = target.ttnn
    x = ttnn.empty(shape, dtype=ttnn.bfloat16, layout=getattr(ttnn, layout), device=target.device)
    zero = (0,) * len(shape)
    for config in (None, ttnn.DRAM_MEMORY_CONFIG, ttnn.L1_MEMORY_CONFIG):
        ttnn.slice(x, zero, shape, memory_config=config)
        ttnn.concat([x], dim=0, memory_config=config)
        ttnn.to_memory_config(x, config or ttnn.DRAM_MEMORY_CONFIG)
    for a, b in ((0, 1), (1, 2), (2, 3), (1, 1), (2, 2)):
        ttnn.transpose(x, a, b)
    for order in ((0, 1, 2, 3), (1, 0, 2, 3), (0, 2, 1, 3)):
        ttnn.permute(x, order)
    ttnn.to_layout(x, getattr(ttnn, layout))
    ttnn.typecast(x, ttnn.bfloat16)
    ttnn.reshape(x, (1, *shape))
    ttnn.to_device(x, target.device)
    ttnn.from_device(ttnn.from_device(x))
    target.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int32", "uint32", "int64"])
def test_tensors_made_and_read_without_a_dtype_are_those_of_real_ttnn(dtype: str) -> None:
    target = open_target("mirror")
    ttnn, values = target.ttnn, torch.zeros(3, 32).to(getattr(torch, dtype))
    ttnn.to_torch(ttnn.from_torch(values))
    ttnn.to_torch(ttnn.from_torch(values, device=target.device))
    ttnn.from_torch(values, dtype=ttnn.bfloat8_b)
    ttnn.from_torch(values, dtype=ttnn.bfloat16, memory_config=ttnn.L1_MEMORY_CONFIG)
    ttnn.event_synchronize(ttnn.record_event(target.device))
    target.close()


def test_what_would_end_the_process_is_refused_before_real_ttnn_sees_it() -> None:
    target = open_target("mirror")
    with pytest.raises(RuntimeError, match=r"torch\.float64 has no ttnn dtype of its own"):
        target.ttnn.from_torch(torch.zeros(32, 32, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="cq_id 1 is out of range"):
        target.ttnn.record_event(target.device, 1)
    with pytest.raises(RuntimeError, match="give the device"):
        target.ttnn.empty((32, 32), dtype=target.ttnn.bfloat16)
    target.close()
