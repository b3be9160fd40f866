# SPDX-License-Identifier: Apache-2.0
# tracemalloc, gc.freeze, weakref callbacks, sys.settrace/setprofile with moves.
import gc
import os
import sys
import time
import tracemalloc

import check

tracemalloc.start(10)
gc.freeze()
sys.setprofile(lambda *a: None)
w = check.Watched(192)
end = time.time() + float(os.environ["CASE_SECONDS"])
bad = 0
while time.time() < end:
    w.step()
    gc.collect()
    bad += w.wrong()
    tracemalloc.take_snapshot() if bad < 0 else None
print(
    "OK" if bad == 0 else "FAIL", "wrong", bad, "traced", tracemalloc.get_traced_memory()[1] >> 20
)
