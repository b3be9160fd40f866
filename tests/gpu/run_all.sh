#!/usr/bin/env bash
# Everything that only a GPU can answer: run_all.sh --help, README.md.
set -euo pipefail
exec "${PYTHON:-python3}" "$(dirname -- "${BASH_SOURCE[0]}")/stages/run_stages.py" "$@"
