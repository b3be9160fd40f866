# SPDX-License-Identifier: Apache-2.0
# A thread (named by its argument, if any) adds to 48 tensors while the limit falls and rises: each
# addition must be there at the end.
import ctypes
import sys
import threading
import time

import check
import torch

import commensal

name = sys.argv[1] if len(sys.argv) > 1 else ""
N, M = 1 << 18, 48
stop = []
mine = [torch.zeros(N, dtype=torch.int64) for _ in range(M)]
n = [0] * M


def writer():
    if name:
        ctypes.CDLL(None).prctl(
            15, name.encode(), 0, 0, 0
        )  # PR_SET_NAME, what Python 3.14 does by itself
    i = 0
    while not stop:
        mine[i % M].add_(1)
        n[i % M] += 1
        i += 1


t = threading.Thread(target=writer)
t.start()
w = check.Watched(32)
end = time.time() + 12
k = done = 0
why = set()
while time.time() < end:
    r = commensal.set_memory_limit("16MiB" if k % 2 == 0 else "1GiB")
    done += r.done_bytes
    k += 1
    w.step(1)
    why.add(r.reason[:60])
    time.sleep(0.02)
stop.append(1)
t.join()
lost = sum(int((x != v).sum()) for x, v in zip(mine, n))
print(
    "name",
    repr(name),
    "lost words",
    lost,
    "others",
    w.wrong(),
    "writes",
    sum(n),
    "changes",
    k,
    "moved MiB",
    done >> 20,
    [x for x in why if x][:2],
    flush=True,
)
sys.exit(lost != 0)
