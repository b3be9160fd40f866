# SPDX-License-Identifier: Apache-2.0
# vLLM#16564, #29341, #53888: after sleep/wake buffers (rope tables), LoRA state or views differ.
# park_tag/wake_tag, with limits moving.
import os
import time

import check
import torch

import commensal


class M(torch.nn.Module):
    def __init__(s):
        super().__init__()
        s.l = torch.nn.Linear(1024, 1024)
        s.register_buffer("rope", torch.arange(1 << 20).float())
        s.half = s.l.weight.data[:512]


with commensal.region("weights", keep=True):
    m = M()
lora = {}
with commensal.region("lora"):
    lora["a"] = torch.randn(8, 1024)
    lora["b"] = torch.randn(1024, 8)
x = torch.randn(4, 1024)
f = lambda: (m.l(x) + x @ lora["a"].T @ lora["b"].T + m.rope[:1024] + m.half[:4].sum()).detach()
ref = f().clone()
w = check.Watched(96)
bad = 0
k = 0
end = time.time() + float(os.environ["CASE_SECONDS"])
while time.time() < end:
    commensal.park_tag("weights")
    commensal.park_tag("lora")
    commensal.park_tag("weights")
    w.step(1)
    if k % 3:
        commensal.wake_tag("lora")
        commensal.wake_tag("weights")
    bad += int((f() != ref).sum()) + w.wrong()
    k += 1
print("OK" if bad == 0 else "FAIL", "cycles", k, "wrong", bad)
