#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Slurm's epilog: takes back what the prolog noted. Also runs for jobs that were killed, preempted or
# requeued.
rm -f "@RUN_DIR@/${SLURMD_NODENAME:-node}-$SLURM_JOB_ID" 2> /dev/null || :
exit 0
