# SPDX-License-Identifier: Apache-2.0
"""commensal: training jobs that live in the gaps of others, for stock PyTorch.

Under `commensal run` a script needs nothing from here. By hand:

    import torch, commensal
    commensal.init(job_class="opportunistic", memory="8GiB", share=0.3)
    commensal.set_memory_limit("4GiB")
    print(commensal.memory_summary())

`import commensal` alone changes nothing and does not import PyTorch. Every function may be called
from any thread; in a forked child nothing is active.
"""

from commensal import memory_saver
from commensal._api import (
    LimitTicket,
    init,
    memory_snapshot,
    memory_stats,
    memory_summary,
    pause,
    resume,
    set_compute_share,
    set_memory_limit,
    stats,
    step,
)
from commensal._inputs import bad_inputs, reading, report_bad_input
from commensal._regions import TagTicket, drop_tag, park_tag, region, wake_tag
from commensal._registered import Registered, keep_resident
from commensal._session import CommensalError, is_active

__version__ = "0.1.0"

__all__ = [
    "CommensalError",
    "LimitTicket",
    "Registered",
    "TagTicket",
    "__version__",
    "bad_inputs",
    "drop_tag",
    "init",
    "is_active",
    "keep_resident",
    "memory_saver",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "park_tag",
    "pause",
    "reading",
    "region",
    "report_bad_input",
    "resume",
    "set_compute_share",
    "set_memory_limit",
    "stats",
    "step",
    "wake_tag",
]
