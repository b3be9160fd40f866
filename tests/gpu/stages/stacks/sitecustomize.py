# SPDX-License-Identifier: Apache-2.0
"""Has each Python process of a stage write its stacks into the stage's log when SIGABRT ends it.

`stage_process.py` puts this folder on the stage's PYTHONPATH, and sends the signal at its limit.
"""

import faulthandler
import importlib.machinery
import importlib.util
import os
import sys

if _log := os.environ.get("STAGE_STACKS"):
    _file = open(_log, "ab", buffering=0)  # noqa: SIM115  # for as long as the process lives
    faulthandler.enable(_file)

# The one that this one stands before, where there is one.
_here = os.path.dirname(os.path.abspath(__file__))
_rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _rest)
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
