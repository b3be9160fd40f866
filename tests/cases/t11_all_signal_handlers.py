# SPDX-License-Identifier: Apache-2.0
# A wrapper that installs a handler for every signal it may (forwarders, "catch all"): real-time
# ones too, after the import.
import collections
import os
import signal
import time

import check

w = check.Watched(256)
got = collections.Counter()
for s in signal.valid_signals():
    if s in (
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGCHLD,
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
    ):
        continue
    try:
        signal.signal(s, lambda n, f: got.update([int(n)]))
    except (OSError, ValueError):
        pass
end = time.time() + float(os.environ["CASE_SECONDS"])
bad = 0
while time.time() < end:
    w.step()
    bad = max(bad, w.wrong())
import commensal

m = commensal.stats()["memory"]
strange = {k: v for k, v in got.items() if k >= 34}
print(
    "OK" if bad == 0 and not strange else "FAIL",
    "wrong",
    bad,
    "signals that nobody sent:",
    strange,
    "deferred:",
    m.get("deferred_reason"),
)
