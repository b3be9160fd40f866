#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Slurm's prolog: notes which job of which class comes to this node, one file a job in @RUN_DIR@.
# A prolog that fails drains its node, so whatever happens here is no reason to.
umask 022
if mkdir -p "@RUN_DIR@" 2> /dev/null; then
  printf 'job=%s uid=%s class=%s partition=%s gpus=%s\n' "$SLURM_JOB_ID" "$SLURM_JOB_UID" \
    "${SPANK_COMMENSAL_CLASS:-none}" "$SLURM_JOB_PARTITION" "${SLURM_JOB_GPUS:-none}" \
    2> /dev/null > "@RUN_DIR@/${SLURMD_NODENAME:-node}-$SLURM_JOB_ID" || :
fi
exit 0
