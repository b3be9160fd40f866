# SPDX-License-Identifier: Apache-2.0
# np.memmap, torch.load(mmap=True), from_numpy, DLPack, frombuffer: foreign memory beside the
# watched one, both right.
import os
import time

import check
import numpy as np
import torch

f = os.environ["CASE_W"] + "/m"
a = np.memmap(f + ".npy", dtype=np.int64, mode="w+", shape=(1 << 20,))
a[:] = 7
a.flush()
sd = {"x": torch.arange(1 << 20), "y": torch.ones(1 << 20)}
torch.save(sd, f + ".pt")
l = torch.load(f + ".pt", mmap=True)
t = torch.from_numpy(a)
d = torch.from_dlpack(np.full(1 << 20, 3.0))
w = check.Watched(192)
n = w.t[0].numpy()
e = np.from_dlpack(w.t[1])
bad = 0
end = time.time() + float(os.environ["CASE_SECONDS"])
while time.time() < end:
    w.step()
    t.add_(1)
    bad += (
        int((t != t[0]).sum()) + int((l["x"] != torch.arange(1 << 20)).sum()) + int((d != 3).sum())
    )
    bad += int((n != w.v[0]).sum()) + int((e != w.v[1]).sum()) + w.wrong()
    n += 1
    w.v[0] += 1
print("OK" if bad == 0 else "FAIL", "wrong", bad)
