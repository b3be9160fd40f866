# SPDX-License-Identifier: Apache-2.0
"""Small training scripts that the end-to-end tests run in processes of their own."""

from __future__ import annotations

import json
import subprocess
from typing import Any

# Trains for STEPS steps (argument 1), then prints one JSON line. With argument 2 it trains until
# that file appears, and leaves the cores to other tests most of that time. `facts` is the hook for
# the text that a test appends.
TRAIN = """
import hashlib, json, os, sys, time, torch
steps, stop_file = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters())
print("training", os.getpid(), flush=True)
step = 0
while step < steps or (stop_file and not os.path.exists(stop_file)):
    x = torch.randn(64, 64)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step == steps:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
    if step > steps:
        time.sleep(0.003)
facts = {"loss": loss.item() if not stop_file else None, "digest": digest.hexdigest()}
import commensal
facts["active"] = commensal.is_active()
if commensal.is_active():
    facts["stats"] = commensal.stats()
"""
TELL = """
print(json.dumps(facts), flush=True)
"""


def facts_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the JSON line that ends a script's output; fail with its stderr if it failed."""
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts
