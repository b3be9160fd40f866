# SPDX-License-Identifier: Apache-2.0
"""The demo's transformer on a large text, training a step for each line that it reads.

`hold MIB` makes a tensor that is freed at once, so that its memory is cached; `limit BYTES` sets
the memory limit and answers with what was given back; any other line is a step.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from torch.nn import functional

import commensal

CONTEXT, BATCH = 64, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text-mib", type=int, required=True, help="of the tokens, 8 bytes each")
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
    from char_transformer import CharTransformer, read_text

    torch.manual_seed(1)
    text = torch.frombuffer(bytearray(read_text(4 << 20)), dtype=torch.uint8)
    data = text.repeat((arguments.text_mib << 17) // len(text) + 1)[: arguments.text_mib << 17]
    data = data.long()
    model = CharTransformer(224, 4, 4, CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    window = torch.arange(CONTEXT + 1)
    steps = 0
    loss_value = float("nan")

    def step() -> None:
        nonlocal steps, loss_value
        sequences = data[torch.randint(len(data) - len(window), (BATCH, 1)) + window]
        optimizer.zero_grad()
        logits = model(sequences[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        loss_value = loss.item()
        steps += 1

    for _ in range(3):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        command, _, value = line.strip().partition(" ")
        if command == "hold":
            torch.full((int(value) << 17,), 1.0, dtype=torch.float64)
            print(commensal.stats()["memory"]["device_bytes"], flush=True)
        elif command == "limit":
            done = commensal.set_memory_limit(int(value)).done_bytes
            print(done, flush=True)
        else:
            step()
            print("done", flush=True)
    arguments.result.write_text(json.dumps({"steps": steps, "loss": loss_value}))


if __name__ == "__main__":
    main()
