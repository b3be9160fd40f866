# SPDX-License-Identifier: Apache-2.0
# pytorch#187483, #185741: torch.profiler beside the product's RecordFunction callback; export,
# nested record_function, threads.
import json
import os
import threading
import time

import check
import torch
from torch.profiler import ProfilerActivity, profile, record_function

w = check.Watched(128)
f = os.environ["CASE_W"] + "/trace.json"
end = time.time() + float(os.environ["CASE_SECONDS"])
bad = 0
k = 0
stop = []


def other():
    while not stop:
        torch.ones(256, 256) @ torch.ones(256, 256)


t = threading.Thread(target=other)
t.start()
while time.time() < end:
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=k % 2 == 0) as p,
        record_function("outer"),
    ):
        for _ in range(3):
            w.step()
            (torch.ones(64, 64, requires_grad=True) @ torch.ones(64, 64)).sum().backward()
    p.export_chrome_trace(f)
    names = {e.key for e in p.key_averages()}
    bad += not {"outer", "aten::mm"} <= names
    json.load(open(f))
    k += 1
    bad += w.wrong()
stop.append(1)
t.join()
print("OK" if bad == 0 and k > 1 else "FAIL", "profiles", k, "wrong", bad)
