# SPDX-License-Identifier: Apache-2.0
# Started by 55-mlock.sh alone: 64 MiB of tensors under mlockall(MCL_FUTURE) must take about 64 MiB.
import ctypes
import os
import time

import check

libc = ctypes.CDLL(None, use_errno=True)
if libc.mlockall(2):
    print("OK mlockall not allowed here:", os.strerror(ctypes.get_errno()))
    raise SystemExit


def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096


before = resident()
try:
    w = check.Watched(64)
except RuntimeError as e:
    print("FAIL allocation under mlockall:", str(e)[:200])
    raise SystemExit(1)
grown = resident() - before >> 20
end = time.time() + float(os.environ.get("CASE_SECONDS", "6"))
bad = 0
while time.time() < end:
    w.step()
    bad += w.wrong()
print(
    "OK" if bad == 0 and grown < 300 else "FAIL",
    "64 MiB of tensors took",
    grown,
    "MiB resident; wrong",
    bad,
)
raise SystemExit(bad != 0 or grown >= 300)
