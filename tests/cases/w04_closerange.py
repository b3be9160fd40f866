# SPDX-License-Identifier: Apache-2.0
# Closes every descriptor that it does not know, goes on in the same process, opens 24 files of its
# own, and checks them and its tensors.
import json
import os
import sys
import time

import check

import commensal

folder = sys.argv[1]
w = check.Watched(128)
w.step()
os.closerange(3, 4096)
for i in range(24):
    f = os.open(f"{folder}/user{i}", os.O_CREAT | os.O_RDWR)
    os.write(f, b"user data\n")


def report(done):
    data = [open(f"{folder}/user{i}", "rb").read() for i in range(24)]
    json.dump(
        {
            "changed user files": sum(d != b"user data\n" for d in data),
            "largest": max(map(len, data)),
            "wrong words": bad,
            "done": done,
        },
        open(folder + "/out", "w"),
    )


bad = k = 0
end = time.time() + 8
while time.time() < end:
    try:
        commensal.set_memory_limit("32MiB" if k % 2 == 0 else "1GiB")
    except Exception as e:
        print("set:", e)
    w.step()
    bad = max(bad, w.wrong())
    k += 1
    report(False)
report(True)
