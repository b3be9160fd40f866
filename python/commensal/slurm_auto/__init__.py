# SPDX-License-Identifier: Apache-2.0
"""One of the two twins that `sbatch --commensal=auto` makes of a job (docs/slurm.md, design 031).

job_submit.lua puts this program before the job's script, on both twins. No coordinator is needed:
the twins meet in a folder of the user's home, and ask Slurm by its commands.
"""

from commensal.slurm_auto._twin import main

__all__ = ["main"]
