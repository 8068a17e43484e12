"""Trains the model of this folder, and writes tokenizer.model and weights.safetensors.

    python train.py texts

`texts` is what text.py has written. README.md says what the committed weights were trained with and how far they came;
another machine sums in another order and gets other weights of about the same loss. Needs requirements-torch.txt.
"""

from __future__ import annotations

import argparse
import io
import math
import time
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from llama import Llama, Sizes

FOLDER = Path(__file__).parent
CONTEXT = 512
BATCH = 8
COOLDOWN = 0.4  # the share of steps in which the learning rates fall
HALF = torch.float16


def tokenizer(text: Path, vocab_size: int) -> sentencepiece.SentencePieceProcessor:
    """Byte pairs with the 256 bytes to fall back on; a line's end is a token of its own."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.read_text(encoding="utf-8").splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        user_defined_symbols=["\n"],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        bos_id=-1,
        eos_id=-1,
        max_sentence_length=1 << 20,
        num_threads=1,
        minloglevel=1,
    )
    (FOLDER / "tokenizer.model").write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def causal(batch: int):
    """Attention within `batch` chunks of equal length."""

    def attend(_layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (x.unflatten(0, (batch, -1)).transpose(1, 2) for x in (query, key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(0, 1)

    return attend


def loss_of(model: Llama, chunks: Tensor) -> Tensor:
    """The mean cross entropy in nats of (batch, length + 1) tokens, each predicted from those before it."""
    batch, length = chunks.shape[0], chunks.shape[1] - 1
    positions = torch.arange(length).repeat(batch)
    logits = model(chunks[:, :-1].flatten(), positions, causal(batch))
    return functional.cross_entropy(logits, chunks[:, 1:].flatten())


@torch.no_grad()
def held_back_loss(model: Llama, tokens: Tensor) -> float:
    """The mean cross entropy of the held-back text, in windows of CONTEXT tokens of which the last may be shorter."""
    total, count = 0.0, 0
    for first in range(0, len(tokens) - 1, CONTEXT):
        chunk = tokens[None, first : first + CONTEXT + 1]
        total += loss_of(model, chunk).item() * (chunk.shape[1] - 1)
        count += chunk.shape[1] - 1
    return total / count


def initialize(model: Llama) -> None:
    """Small normal weights; what adds to the residual stream begins smaller still."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            residual = name.endswith(("attention_out.weight", "down.weight"))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * model.sizes.num_layer) if residual else 0.02)


def train(model: Llama, tokens: Tensor, held_back: Tensor, arguments: argparse.Namespace) -> None:
    """Muon for the layers' matrices, AdamW for the embedding and norms; a warm-up, a plateau, a linear fall to 0."""
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
    optimizers = [
        torch.optim.Muon(matrices, lr=arguments.muon_lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=arguments.adamw_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / 100, 1, (1 - step / arguments.steps) / COOLDOWN)
        )
        for optimizer in optimizers
    ]
    span, began = torch.arange(CONTEXT + 1), time.perf_counter()
    for step in range(arguments.steps):
        random = torch.Generator().manual_seed(arguments.seed * 1_000_003 + step)
        starts = torch.randint(len(tokens) - CONTEXT, (BATCH,), generator=random)
        loss = loss_of(model, tokens[starts[:, None] + span])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for part in (*optimizers, *schedules):
            part.step()
        model.zero_grad(set_to_none=True)
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {time.perf_counter() - began:.0f} s", flush=True)
        if (step + 1) % 200 == 0:
            print(f"step {step + 1}: held back {held_back_loss(model, held_back):.4f}", flush=True)


def main() -> None:
    """Trains, rounds to float16, and says what was reached."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("texts", type=Path, help="the folder with training.txt and held_back.txt")
    parser.add_argument("--steps", type=int, default=2000, help="optimizer steps of 4096 tokens")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--muon-lr", type=float, default=5e-3)
    parser.add_argument("--adamw-lr", type=float, default=3e-3)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    sizes = Sizes()
    words = tokenizer(arguments.texts / "training.txt", sizes.vocab_size)
    tokens, held_back = (
        torch.tensor(words.encode((arguments.texts / f"{name}.txt").read_text(encoding="utf-8")))
        for name in ("training", "held_back")
    )
    model = Llama(sizes)
    initialize(model)
    count = sum(p.numel() for p in model.parameters())
    print(f"{count} parameters, {len(tokens)} tokens to learn from, {len(held_back)} held back", flush=True)
    train(model, tokens, held_back, arguments)
    weights = {name: parameter.to(HALF) for name, parameter in model.state_dict().items()}
    save_file(weights, FOLDER / "weights.safetensors", metadata={"steps": str(arguments.steps)})
    model.load_state_dict({name: half.float() for name, half in weights.items()})
    loss = held_back_loss(model, held_back)
    print(f"in float16, held back: {loss:.4f} nats for each token, perplexity {math.exp(loss):.3f}")


if __name__ == "__main__":
    main()
