# SPDX-License-Identifier: Apache-2.0
"""Trains a character-level transformer on the sources of the Python standard library.

A plain PyTorch script: it knows nothing of commensal and runs anywhere.

    python examples/char_transformer.py --steps 200
    commensal run --opportunistic -- python examples/char_transformer.py --steps 200

With `--device cuda` it trains on a GPU, under PyTorch's deterministic settings.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor, nn
from torch.nn import functional


def standard_library_sources() -> Iterator[Path]:
    """Yield the standard library's source files, always in the same order."""
    root = Path(os.path.dirname(os.__file__))
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - {"site-packages", "dist-packages", "__pycache__"})
        yield from (Path(folder) / name for name in sorted(files) if name.endswith(".py"))


def read_text(limit_bytes: int) -> bytes:
    """Return `limit_bytes` of sources; where there are fewer, they are repeated."""
    text = bytearray()
    for path in standard_library_sources():
        text += path.read_bytes()
        if len(text) >= limit_bytes:
            break
    return bytes(text * -(-limit_bytes // len(text)))[:limit_bytes]


def choose_device(name: str) -> torch.device:
    """Return a device; on a GPU the same run then gives the same bits."""
    device = torch.device(name)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        # Fused attention adds its gradients in any order; this one is exact.
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


class Block(nn.Module):
    """Attends to earlier characters, then transforms each position."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.transform = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.attention_norm(x))
        parts = parts.view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.transform(x)


class CharTransformer(nn.Module):
    """Predicts each next byte of a text."""

    def __init__(self, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.byte_embedding = nn.Embedding(256, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.byte_embedding(tokens) + self.position_embedding(positions)
        logits: Tensor = self.head(self.blocks(x))
        return logits


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--context", type=int, default=64, help="characters a sequence")
    parser.add_argument("--width", type=int, default=224)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--text-bytes", type=int, default=12 << 20, help="text to train on")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="default: PyTorch's own choice")
    parser.add_argument("--log", type=Path, help="one JSON line a step")
    parser.add_argument("--result", type=Path, help="JSON with the hash of losses and parameters")
    return parser.parse_args(argv)


def write_line(log: TextIO | None, **values: object) -> None:
    if log is not None:
        log.write(json.dumps({"time": time.monotonic(), **values}) + "\n")


def train(arguments: argparse.Namespace, log: TextIO | None) -> dict[str, object]:
    """Train for a fixed number of steps; return the result with its hash."""
    device = choose_device(arguments.device)
    torch.manual_seed(arguments.seed)
    text = torch.frombuffer(bytearray(read_text(arguments.text_bytes)), dtype=torch.uint8)
    data = text.to(device).long()
    model = CharTransformer(arguments.width, arguments.layers, arguments.heads, arguments.context)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    digest = hashlib.sha256()
    window = torch.arange(arguments.context + 1)
    loss_value = float("nan")
    write_line(log, event="start", threads=torch.get_num_threads())
    for step in range(arguments.steps):
        begin = time.monotonic()
        starts = torch.randint(len(data) - len(window), (arguments.batch, 1))
        sequences = data[(starts + window).to(device)]
        optimizer.zero_grad()
        logits = model(sequences[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        loss_value = loss.item()
        digest.update(loss_value.hex().encode())
        write_line(
            log,
            step=step,
            seconds=time.monotonic() - begin,
            wait_seconds=0.0,
            loss=loss_value.hex(),
            batch=arguments.batch,
        )
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().numpy().tobytes())
    write_line(log, event="end")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {
        "steps": arguments.steps,
        "loss": loss_value,
        "sha256": digest.hexdigest(),
        "parameters": parameters,
        "live_bytes": 16 * parameters + data.numel() * data.element_size(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.log:
        with arguments.log.open("w", buffering=1) as log:
            result = train(arguments, log)
    else:
        result = train(arguments, None)
    if arguments.result:
        arguments.result.write_text(json.dumps(result))
    print(f"{result['steps']} steps, loss {result['loss']:.4f}, sha256 {result['sha256']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
