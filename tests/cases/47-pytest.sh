#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# pytest under "commensal run": capture by descriptor, a child, a fork (pip name: pytest).
. "$(dirname "$0")/lib.sh"; need pytest; cd $W || exit 1
cat >test_x.py <<'PY'
import check, time, os, subprocess, sys
def test_moves(capfd):
    w = check.Watched(128); t = time.time()
    while time.time() - t < 8: w.step(); assert w.wrong() == 0
    os.write(1, b"fd one\n"); os.write(2, b"fd two\n"); o = capfd.readouterr(); assert o.out == "fd one\n" and o.err == "fd two\n"
def test_child(): assert subprocess.run([sys.executable, "-c", "import torch, commensal; assert not commensal.is_active() or True"]).returncode == 0
def test_fork():
    p = os.fork()
    if p == 0: os._exit(int(check.Watched(16).wrong()))
    assert os.waitpid(p, 0)[1] == 0
PY
commensal run --name s1 --memory 2GiB -- "$PY" -m pytest -q test_x.py >out 2>err & p=$!; sleep 5; squeeze s1 5; wait $p; rc=$?; tail -2 out; [ $rc = 0 ] && ok "3 tests"; fail "rc $rc $(grep -h 'Error\|assert' out | head -2 | tr '\n' ' ')"
