# SPDX-License-Identifier: Apache-2.0
# safetensors#692, vsag#2389: io_uring reads into tensor memory. Documented: live chunks are
# deferred. Data must be right.
import ctypes
import os
import time

import check

libc = ctypes.CDLL(None, use_errno=True)
w = check.Watched(192)
p = (ctypes.c_uint8 * 120)()
fd = libc.syscall(425, 8, ctypes.byref(p))
if fd < 0:
    print("OK io_uring not allowed here:", os.strerror(ctypes.get_errno()))
    raise SystemExit
end = time.time() + float(os.environ["CASE_SECONDS"])
bad = 0
why = set()
import commensal

while time.time() < end:
    w.step()
    bad += w.wrong()
    why.add(commensal.stats()["memory"].get("deferred_reason", ""))
print(
    "OK" if bad == 0 and any("io_uring" in x for x in why) else "FAIL",
    "wrong",
    bad,
    [x for x in why if x][:2],
)
