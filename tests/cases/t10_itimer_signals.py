# SPDX-License-Identifier: Apache-2.0
# Lightning#21406/#20542: the script's own handlers (SIGUSR1/2, SIGALRM each ms) must run, and see
# right memory.
import os
import signal
import time

import check

n = {"alrm": 0, "usr": 0}
signal.signal(signal.SIGALRM, lambda *a: n.__setitem__("alrm", n["alrm"] + 1))
for s in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(s, lambda *a: n.__setitem__("usr", n["usr"] + 1))
w = check.Watched(256)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
sent = 0
end = time.time() + float(os.environ["CASE_SECONDS"])
bad = 0
while time.time() < end:
    w.step()
    for s in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(os.getpid(), s)
        sent += 1
    bad = max(bad, w.wrong())
signal.setitimer(signal.ITIMER_REAL, 0)
print(
    "OK" if bad == 0 and n["usr"] == sent and n["alrm"] > 100 else "FAIL",
    n,
    "sent",
    sent,
    "wrong",
    bad,
)
