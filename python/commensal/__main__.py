# SPDX-License-Identifier: Apache-2.0
"""`python -m commensal`: the command line."""

import sys

from commensal.cli import main

if __name__ == "__main__":
    sys.exit(main())
