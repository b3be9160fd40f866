# SPDX-License-Identifier: Apache-2.0
# pytorch#75147, #130610, #1355: fork DataLoader workers again and again while memory moves.
import os
import time

import check
import torch
from torch.utils.data import DataLoader, Dataset


class D(Dataset):
    def __init__(s):
        s.x = torch.arange(64 * 65536, dtype=torch.int64).view(64, -1)

    def __len__(s):
        return 64

    def __getitem__(s, i):
        return s.x[i]


d = D()
w = check.Watched(192)
end = time.time() + float(os.environ["CASE_SECONDS"])
bad = 0
epochs = 0
while time.time() < end:
    for b in DataLoader(d, batch_size=8, num_workers=2):
        bad += int((b[:, 1] - b[:, 0] != 1).sum())
        w.step(1)
    bad += w.wrong()
    epochs += 1
print("OK" if bad == 0 and epochs > 2 else "FAIL", "epochs", epochs, "wrong", bad)
