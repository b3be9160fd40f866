# SPDX-License-Identifier: Apache-2.0
# The plain watched loop, for runs under other conditions (LD_PRELOAD, memray, ulimit, pytest).
import os
import time

import check

w = check.Watched(256)
end = time.time() + float(os.environ["CASE_SECONDS"])
bad = 0
while time.time() < end:
    w.step()
    bad += w.wrong()
print("OK" if bad == 0 else "FAIL", "wrong", bad)
