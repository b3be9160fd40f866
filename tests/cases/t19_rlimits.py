# SPDX-License-Identifier: Apache-2.0
# resource.setrlimit in the script: RLIMIT_AS just above what is mapped, RLIMIT_FSIZE small,
# RLIMIT_NOFILE small.
import os
import resource as R
import time

import check

w = check.Watched(256)
vm = int(open("/proc/self/statm").read().split()[0]) * 4096
which = os.environ.get("CASE_LIMIT", "AS")
if which == "AS":
    R.setrlimit(R.RLIMIT_AS, (vm + (64 << 20),) * 2)
if which == "FSIZE":
    R.setrlimit(R.RLIMIT_FSIZE, (1 << 20,) * 2)
if which == "NOFILE":
    R.setrlimit(R.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")),) * 2)
if which == "NPROC":
    R.setrlimit(R.RLIMIT_NPROC, (1, 1))
if which == "STACK":
    R.setrlimit(R.RLIMIT_STACK, (64 << 10,) * 2)
end = time.time() + float(os.environ["CASE_SECONDS"])
bad = 0
import commensal

why = set()
while time.time() < end:
    w.step()
    bad += w.wrong()
    why.add(commensal.stats()["memory"].get("deferred_reason", ""))
print("OK" if bad == 0 else "FAIL", which, "wrong", bad, [x for x in why if x][:3])
