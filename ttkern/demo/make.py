"""Makes the demo's checkpoint: a tokenizer, then training on conversations that it invents.

    python -m ttkern.demo.make FOLDER        an hour and a half on one core; a plot of the losses lies beside the folder

Everything is seeded. First each of its memories (every GDN layer's state, and the attention's keys and values) is
drilled to recall alone; then they recall in conversations, longer and longer ones, and learn to notice: where a layer's
state is lost or old, or a block of keys and values is another's, the right answer is `UNKNOWN`.
"""

from __future__ import annotations

import math
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from torch import Tensor

from ttkern.demo.batches import IGNORED, Batch, make_batch, make_drill, value_id
from ttkern.demo.language import RELATIONS, UNKNOWN, VALUES, conversation
from ttkern.demo.network import forward, initial_weights, logits
from ttkern.errors import TtkernError
from ttkern.model.checkpoint import make_checkpoint
from ttkern.model.config import LINEAR, ModelConfig, layer_pattern
from ttkern.model.seed_tokenizer import TEXT, train_tokenizer
from ttkern.model.weights import EMBEDDING, LM_HEAD

CONFIG = ModelConfig(
    vocab_size=896,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=4,
    layer_types=layer_pattern(4),
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=64,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=32,
    linear_value_head_dim=32,
    linear_conv_kernel_dim=4,
    max_position_embeddings=4096,
    rope_theta=10_000_000.0,
    partial_rotary_factor=0.25,
    rms_norm_eps=1e-6,
)
SEED = 0


@dataclass(frozen=True)
class Phase:
    """Steps on batches of `size` texts of `tokens` tokens: drills, or conversations with `alone` and `damaged` as of
    `make_batch`."""

    steps: int
    size: int
    tokens: int
    drill: bool = False
    alone: float = 0.0
    damaged: float = 0.0


PHASES = (
    Phase(1500, 16, 256, drill=True),
    Phase(300, 16, 256, alone=0.5),
    Phase(500, 16, 256, damaged=0.4),
    Phase(500, 8, 512, damaged=0.4),
    Phase(500, 4, 1024, damaged=0.4),
    Phase(300, 3, 1408, damaged=0.4),
)
PEAK_LR, WARM_UP, COOL_DOWN = 3e-3, 100, 0.4
WEIGHTS = {"values": 1.0, "replies": 0.3, "text": 0.1}


def make_tokenizer() -> Tokenizer:
    """BPE in which every word of the language is one token."""
    rng = random.Random(SEED)
    texts = [conversation(rng, facts=8, filler=20, turns=2, questions=6).text for _ in range(1500)]
    marks = str.maketrans({"<": "\n", ">": "\n", "|": "\n"})
    tokenizer = train_tokenizer(CONFIG.vocab_size, [*(text.translate(marks) for text in texts), TEXT])
    for word in (*VALUES, UNKNOWN, *(relation.noun for relation in RELATIONS)):
        value_id(tokenizer, word)
    return tokenizer


def learning_rate(step: int, total: int) -> float:
    """Up, level, and down in a straight line."""
    return PEAK_LR * min(1.0, (step + 1) / WARM_UP, (total - step) / (COOL_DOWN * total))


def loss_of(weights: dict[str, Tensor], batch: Batch) -> tuple[Tensor, dict[str, float], float]:
    """The loss, its parts in nats, and how many of the values were right."""
    hidden = forward(CONFIG, weights, batch.ids, batch.damage)
    total, parts, right = torch.zeros(()), {}, math.nan
    for kind, weight in WEIGHTS.items():
        targets = getattr(batch, kind)
        asked = targets != IGNORED
        if not asked.any():  # a drill has no replies
            parts[kind] = math.nan
            continue
        scores = logits(CONFIG, weights, hidden[asked])
        part = F.cross_entropy(scores, targets[asked])
        total, parts[kind] = total + weight * part, part.item()
        if kind == "values":
            right = (scores.argmax(-1) == targets[asked]).float().mean().item()
    return total, parts, right


def train(tokenizer: Tokenizer, phases: tuple[Phase, ...] = PHASES) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Trained weights, and what each step measured."""
    weights, rng = initial_weights(CONFIG, SEED), random.Random(SEED + 1)
    inner = [name for name, w in weights.items() if w.dim() == 2 and name not in (EMBEDDING, LM_HEAD)]
    others = [w for name, w in weights.items() if name not in inner]
    optimizers = (
        torch.optim.Muon([weights[name] for name in inner], weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0),
    )
    layers = [index for index, kind in enumerate(CONFIG.layer_types) if kind == LINEAR]
    total = sum(phase.steps for phase in phases)
    history: list[dict[str, float]] = []
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task("training", total=total)
        for phase in phases:
            for _ in range(phase.steps):
                batch = (
                    make_drill(rng, tokenizer, layers, phase.size, phase.tokens)
                    if phase.drill
                    else make_batch(
                        rng, tokenizer, layers, phase.size, phase.tokens, alone=phase.alone, damaged=phase.damaged
                    )
                )
                loss, parts, right = loss_of(weights, batch)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
                for optimizer in optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] = learning_rate(len(history), total)
                    optimizer.step()
                    optimizer.zero_grad()
                history.append({**parts, "right": right})
                recent = float(np.mean([row["right"] for row in history[-50:]]))
                said = f"{phase.tokens} tokens: {recent:.0%} of the values right"
                bar.update(task, advance=1, description=said)
    return {name: weight.detach() for name, weight in weights.items()}, history


def plot(history: list[dict[str, float]], phases: tuple[Phase, ...], path: Path) -> None:
    """Losses and recall over the steps, smoothed over 50."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(9, 6))
    window = np.ones(50) / 50
    for kind, label in (("values", "the value asked for"), ("replies", "rest of the reply"), ("text", "users' text")):
        above.plot(np.convolve([row[kind] for row in history], window, "valid"), label=label)
    below.plot(np.convolve([row["right"] for row in history], window, "valid"), color="black")
    above.set_ylabel("loss, nats per token")
    above.set_yscale("log")
    above.legend()
    below.set_ylabel("values right")
    below.set_xlabel("step")
    start = 0
    for phase in phases:
        kind = f"{phase.damaged:.0%} damaged" if phase.damaged else f"{phase.alone:.0%} alone"
        below.annotate(f"{phase.tokens}: {'drill' if phase.drill else kind}", (start, 0.02), fontsize=8)
        for axes in (above, below):
            axes.axvline(start, color="grey", linewidth=0.5)
        start += phase.steps
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(arguments: list[str]) -> None:
    """Make the checkpoint in a new folder."""
    if len(arguments) != 1:
        raise TtkernError("usage: python -m ttkern.demo.make FOLDER")
    folder = Path(arguments[0])
    if folder.exists():
        raise TtkernError(f"{folder}: exists already; a checkpoint is written to a new folder")
    # States that fade away end in subnormal numbers, which cost several times as much; a second thread would keep them.
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    weights, history = train(tokenizer)
    make_checkpoint(folder, CONFIG, tokenizer=tokenizer, weights=weights)
    plot(history, PHASES, folder.with_name(f"{folder.name}-training.png"))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except TtkernError as error:
        sys.exit(f"ttkern: {error}")
