# SPDX-License-Identifier: Apache-2.0
"""What holds for all Python tests."""

from __future__ import annotations

import signal

# What a shell starts in its background ignores Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
