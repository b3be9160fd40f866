# SPDX-License-Identifier: Apache-2.0
# torch.set_num_threads changing mid-run with OpenMP workers computing while memory moves.
import os
import time

import check
import torch

w = check.Watched(192)
end = time.time() + float(os.environ["CASE_SECONDS"])
bad = 0
k = 0
while time.time() < end:
    k += 1
    torch.set_num_threads(1 + k % 4)
    w.step()
    bad += w.wrong()
    a = torch.ones(600, 600)
    bad += int(((a @ a) != 600).sum())
print("OK" if bad == 0 else "FAIL", "rounds", k, "wrong", bad)
