#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# pytorch#16558, opencompass#2628: the script lowers its own limits (file size, descriptors, processes, stack) while its memory moves.
cd "$(dirname "$0")" || exit 1
for l in FSIZE NOFILE NPROC STACK; do o=$(CASE_LIMIT=$l ./live.sh t19_rlimits.py 5 2>&1 | tail -1); echo "$l $o"; case $o in OK*) ;; *) bad="$bad $l";; esac; done
[ -z "$bad" ] && echo "OK: all four" || { echo "FAIL:$bad"; exit 1; }
