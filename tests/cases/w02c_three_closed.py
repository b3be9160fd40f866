# SPDX-License-Identifier: Apache-2.0
# Started with 0, 1 and 2 closed: what are they now, and are the tensors right when text is written
# to 1 and 2?
import json
import os
import sys
import time

import check

try:
    import commensal

    active = commensal.is_active()
except ImportError:
    active = False


def target(n):
    try:
        return os.readlink(f"/proc/self/fd/{n}")
    except OSError:
        return "closed"


fds = [target(n) for n in range(3)]
wrote = {1: 0, 2: 0}
bad = k = 0
w = check.Watched(128)
end = time.time() + (9 if active else 0.1)
while time.time() < end:
    if active:
        commensal.set_memory_limit("32MiB" if k % 2 == 0 else "1GiB")
    for n in (1, 2):
        try:
            wrote[n] += os.write(n, b"W" * 65536)
        except OSError:
            pass
    w.step()
    bad = max(bad, w.wrong())
    k += 1
json.dump(
    {"fds": fds, "wrote": wrote, "wrong_words": bad, "rounds": k, "active": active},
    open(sys.argv[1], "w"),
)
