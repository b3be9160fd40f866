# SPDX-License-Identifier: Apache-2.0
# resize_/set_/sparse/quantised/strided views/complex/bool/empty storages while memory moves.
import os
import time

import check
import torch
from torch import nn

w = check.Watched(128)
end = time.time() + float(os.environ["CASE_SECONDS"])
bad = 0
k = 0
g = torch.zeros(0, dtype=torch.int64)
sp = torch.sparse_coo_tensor(
    torch.arange(1 << 18).repeat(2, 1), torch.ones(1 << 18), (1 << 18, 1 << 18)
).coalesce()
try:
    q = torch.ao.quantization.quantize_dynamic(
        nn.Sequential(nn.Linear(512, 512)), {nn.Linear}, torch.qint8
    )
    ref = q(torch.ones(4, 512))
except Exception as e:
    q = None
    print("quantised not here:", type(e).__name__)
while time.time() < end:
    k += 1
    w.step(2)
    n = (k % 37 + 1) << 16
    old = g.numel()
    g.resize_(n)
    if n > old:
        g[old:] = torch.arange(old, n)
    bad += int((g != torch.arange(n)).sum())
    s = torch.empty(0, dtype=torch.int64)
    s.set_(w.t[k % len(w.t)].untyped_storage(), 0, (16,), (2,)) if False else s.set_(
        w.t[k % len(w.t)].storage(), 0, (16,), (2,)
    )
    bad += int((s != w.v[k % len(w.t)]).sum())
    v = torch.ones(1 << 18)
    bad += int((torch.mv(sp, v) != 1).sum())
    if q is not None:
        bad += int((q(torch.ones(4, 512)) != ref).sum())
    w.t[3].untyped_storage().nbytes()
    x = torch.empty(0)
    x.untyped_storage().resize_(1 << 22)
    x.untyped_storage().resize_(0)
    bad += w.wrong()
print("OK" if bad == 0 else "FAIL", "rounds", k, "wrong", bad)
