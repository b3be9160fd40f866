#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Lightning#6819: batch-size finders know an out-of-memory error by its text. The predicates of the libraries themselves (pip names: lightning, accelerate).
. "$(dirname "$0")/lib.sh"; need lightning accelerate; cd $W || exit 1
cat >s.py <<'PY'
import torch, commensal
from lightning.pytorch.utilities.memory import is_oom_error
from accelerate.utils.memory import should_reduce_batch_size
import sys
try: torch.ones(1 << 29)
except Exception as e: err = e
else: print("no OOM"); sys.exit(5)
print("type", type(err).__name__, "Lightning", is_oom_error(err), "accelerate", should_reduce_batch_size(err), "| torch.OutOfMemoryError", isinstance(err, torch.OutOfMemoryError), "|", str(err)[:120])
sys.exit(0 if is_oom_error(err) and should_reduce_batch_size(err) else 3)
PY
COMMENSAL_HOST_CAP=64MiB commensal run --name s1 --memory 256MiB --ask-wait 0 -- "$PY" s.py >out 2>err; rc=$?; cat out; [ $rc = 0 ] && ok "both know it"; fail "rc $rc $(cat out) $(grep -v '^ ' err | tail -1 | cut -c1-200)"
