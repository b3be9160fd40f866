# SPDX-License-Identifier: Apache-2.0
# rocksdb#11233: O_DIRECT reads by other threads into tensors, forks beside them, while memory
# moves.
import os
import subprocess
import tempfile
import threading
import time

import check
import torch

f = tempfile.NamedTemporaryFile(dir="/var/tmp", prefix="case-", delete=False).name
n = 8 << 20
open(f, "wb").write(torch.arange(n // 8).numpy().tobytes())
os.sync()
fd = os.open(f, os.O_RDONLY | os.O_DIRECT)
ref = torch.arange(n // 8)
w = check.Watched(128)
raw = [torch.zeros(n // 8 + 512, dtype=torch.int64) for _ in range(4)]


def al(t):
    o = (-t.data_ptr() % 4096) // 8
    return t[o : o + n // 8]


bufs = [al(t) for t in raw]
stop = []
bad = [0]
reads = [0]


def reader(b):
    m = memoryview(b.numpy()).cast("B")
    while not stop:
        b.zero_()
        got = os.preadv(fd, [m], 0)
        reads[0] += 1
        if got != n:
            if got <= 0:
                bad[0] += 1
            continue
        bad[0] += int((b != ref).sum())


ts = [threading.Thread(target=reader, args=(b,)) for b in bufs[:2]]
[t.start() for t in ts]
end = time.time() + float(os.environ["CASE_SECONDS"])
wrong = 0
while time.time() < end:
    w.step()
    wrong += w.wrong()
    subprocess.run(["true"])
stop.append(1)
[t.join() for t in ts]
os.unlink(f)
print("OK" if bad[0] == 0 and wrong == 0 else "FAIL", "reads", reads[0], "wrong", bad[0], wrong)
