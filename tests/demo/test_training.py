"""What the demo model is trained on and with: the language, the network and what damage does to it."""

from __future__ import annotations

import random

import pytest
import torch
from tokenizers import Tokenizer

from ttkern.demo.batches import IGNORED, make_batch, make_drill, sample, value_id
from ttkern.demo.language import UNKNOWN, VALUES, conversation
from ttkern.demo.make import CONFIG, Phase, learning_rate, make_tokenizer, train
from ttkern.demo.network import CHUNK, Damage, forward, initial_weights, logits
from ttkern.demo.questions import make_question

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in initial_weights(CONFIG, 3).items()}


def test_the_network_is_transformers(weights: dict[str, torch.Tensor]) -> None:
    settings = transformers.Qwen3_5TextConfig(**CONFIG.to_dict())
    model = transformers.Qwen3_5ForCausalLM(settings).eval()
    named = {name if name == "lm_head.weight" else f"model.{name}": tensor for name, tensor in weights.items()}
    model.load_state_dict(named)
    ids = torch.randint(0, CONFIG.vocab_size, (2, 4 * CHUNK), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs, ours = model(ids).logits, logits(CONFIG, weights, forward(CONFIG, weights, ids))
    assert (theirs - ours).abs().max() < 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("kind", ["lost", "old", "stale", "blind"])
def test_damage_is_where_it_is_said_to_be(weights: dict[str, torch.Tensor], kind: str) -> None:
    """The first sequence is damaged from chunk 2 on, the second is not; what a lost state is, is computed apart."""
    ids = torch.randint(0, CONFIG.vocab_size, (2, 4 * CHUNK), generator=torch.Generator().manual_seed(0))
    borders, since = torch.zeros(2, 4, dtype=torch.bool), torch.tensor([4, 4])
    borders[0, 2] = True
    lost, stale = torch.zeros(3, 2, dtype=torch.bool), torch.zeros(2, 4 * CHUNK, dtype=torch.bool)
    blind = torch.tensor([kind == "blind", False])
    if kind == "lost":
        lost[:, 0] = True
    elif kind == "old":
        since[0] = 0  # before any token: the same as lost
    elif kind == "stale":
        stale[0, 2 * CHUNK : 3 * CHUNK] = True
    whole = forward(CONFIG, weights, ids)
    damaged = forward(CONFIG, weights, ids, Damage(borders, lost, since, stale, blind))
    assert torch.allclose(damaged[1], whole[1], atol=1e-6)
    assert torch.allclose(damaged[0, : 2 * CHUNK], whole[0, : 2 * CHUNK], atol=1e-6)
    assert (damaged[0, 2 * CHUNK + 8 :] - whole[0, 2 * CHUNK + 8 :]).abs().amax() > 1e-3
    if kind == "old":
        lost[:, 0] = True
        assert torch.equal(
            damaged, forward(CONFIG, weights, ids, Damage(borders, lost, torch.tensor([4, 4]), stale, blind))
        )


def test_values_are_asked_for_where_the_answer_gives_them(tokenizer: Tokenizer) -> None:
    batch = make_batch(random.Random(0), tokenizer, [0, 1, 2], 8, 512)
    assert batch.damage is None
    known = {value_id(tokenizer, value): value for value in (*VALUES, UNKNOWN)}
    rows, places = (batch.values != IGNORED).nonzero(as_tuple=True)
    assert len(rows) >= 16
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        target = int(batch.values[row, place])
        assert int(batch.ids[row, place + 1]) == target
        text = tokenizer.decode(batch.ids[row, : place + 1].tolist())
        name, verb = text.split()[-3:-1]
        told = [part.split()[0] for part in text.split(f"{name} {verb} the ")[1:]]
        assert known[target] == (told[-1] if told else UNKNOWN), text


def test_damaged_facts_are_to_be_unknown_and_others_are_not(tokenizer: Tokenizer) -> None:
    clean = make_batch(random.Random(5), tokenizer, [0, 1, 2], 64, 512, damaged=1e-9)
    damaged = make_batch(random.Random(5), tokenizer, [0, 1, 2], 64, 512, damaged=1.0)
    unknown = value_id(tokenizer, UNKNOWN)
    for batch, least, most in ((clean, 0.02, 0.4), (damaged, 0.4, 0.95)):
        asked = batch.values[batch.values != IGNORED]
        assert least < (asked == unknown).float().mean() < most


def test_alone_leaves_one_memory_and_the_answers_as_they_are(tokenizer: Tokenizer) -> None:
    batch = make_batch(random.Random(6), tokenizer, [0, 1, 2], 64, 512, alone=1.0)
    assert batch.damage is not None
    left = 3 - batch.damage.lost.sum(0) + (~batch.damage.blind).long()
    assert (left == 1).all()
    unknown = value_id(tokenizer, UNKNOWN)
    assert (batch.values[batch.values != IGNORED] == unknown).float().mean() < 0.4


def test_a_drill_asks_for_what_was_told_and_leaves_one_memory(tokenizer: Tokenizer) -> None:
    batch = make_drill(random.Random(7), tokenizer, [0, 1, 2], 16, 256)
    assert batch.damage is not None
    left = 3 - batch.damage.lost.sum(0) + (~batch.damage.blind).long()
    assert sorted(set(left.tolist())) == [1, 4]
    rows, places = (batch.values != IGNORED).nonzero(as_tuple=True)
    assert len(rows) > 16 * 8
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        text = tokenizer.decode(batch.ids[row, : place + 1].tolist())
        name, verb = text.split()[-3:-1]
        told = [part.split()[0] for part in text.split(f"{name} {verb} the ")[1:]]
        assert told[-1] == tokenizer.decode([int(batch.values[row, place])]).strip()


def test_samples_fill_their_room(tokenizer: Tokenizer) -> None:
    rng = random.Random(1)
    lengths = [len(sample(rng, tokenizer, tokens).ids) / tokens for tokens in (256, 512, 1024) for _ in range(20)]
    assert max(lengths) <= 1
    assert sum(lengths) / len(lengths) > 0.6


@pytest.mark.parametrize(("distance", "turns"), [(100, 0), (512, 0), (1024, 3)])
def test_questions_lie_at_their_distance(tokenizer: Tokenizer, distance: int, turns: int) -> None:
    rng = random.Random(distance)
    for _ in range(10):
        one = make_question(rng, tokenizer, distance, turns)
        assert distance - 30 <= one.distance <= distance
        assert one.prompt[: len(one.history)] == one.history
        assert tokenizer.decode([one.prompt[one.fact]]) == f" {one.word}"
        assert tokenizer.decode([one.reply[one.value]]) == f" {one.word}"
        after = tokenizer.decode(one.prompt[one.fact : len(one.history)], skip_special_tokens=False)
        assert after.count("<|im_start|>user") == turns


def test_the_same_seed_gives_the_same_conversation() -> None:
    one, again = (conversation(random.Random(4), facts=5, filler=9, turns=2, questions=3) for _ in range(2))
    assert one == again
    assert one.text != conversation(random.Random(5), facts=5, filler=9, turns=2, questions=3).text


def test_the_learning_rate_goes_up_and_down() -> None:
    rates = [learning_rate(step, 1000) for step in range(1000)]
    assert rates[0] < rates[50] < max(rates) == rates[300] > rates[900] > rates[999] > 0


def test_training_learns(tokenizer: Tokenizer) -> None:
    _, history = train(
        tokenizer, (Phase(24, 4, 128), Phase(2, 2, 128, drill=True), Phase(2, 2, 256, alone=0.5, damaged=0.5))
    )
    assert len(history) == 28
    assert history[23]["text"] < 0.95 * history[0]["text"]
