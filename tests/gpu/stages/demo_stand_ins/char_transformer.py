# SPDX-License-Identifier: Apache-2.0
"""Stands in for `examples/char_transformer.py` where kernels do nothing: same options, same log.

Its text lies on the GPU and is hardly touched: a step reads one place of it. Where it moved and
came back with other bytes, the losses differ.
"""

from __future__ import annotations

import sys
import time

from stand_in import Training, blocks, parser

BATCH = 16
MEETING_STEP = 4  # after which the other job may go on

if __name__ == "__main__":
    options = parser()
    options.add_argument("--text-bytes", type=int, required=True)
    arguments = options.parse_args(sys.argv[1:])
    with Training(arguments, text_bytes=arguments.text_bytes) as training:
        for step in range(arguments.steps):
            begin = time.monotonic()
            training.step(step, blocks(BATCH), begin)
            if step == MEETING_STEP:
                training.tell("trains")
