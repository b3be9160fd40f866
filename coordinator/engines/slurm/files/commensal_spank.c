// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * SPANK plugin: gives srun, sbatch and salloc the option --commensal=guaranteed|opportunistic, and
 * hands the class on
 *   - to job_submit.lua, prolog and epilog, as SPANK_COMMENSAL_CLASS
 *   - to every task, as COMMENSAL_CLASS: commensal run --$COMMENSAL_CLASS -- python train.py
 *
 * plugstack.conf:  optional /path/commensal_spank.so
 *
 * Slurm's header is under the GPL, and so is this file: it is small and apart, and no other part of
 * the project is linked with it. Rebuild it for every major Slurm release: the interface of plugins
 * is not stable between them.
 */
#include <stdio.h>
#include <string.h>

#include <slurm/spank.h>

SPANK_PLUGIN(commensal, 1);

static char job_class[16];         /* empty: the option was not given */

static int on_option(int val, const char *arg, int remote)
{
	(void)val;
	if (!arg || (strcmp(arg, "guaranteed") != 0 && strcmp(arg, "opportunistic") != 0)) {
		if (!remote)
			slurm_error("--commensal takes guaranteed or opportunistic, not '%s'",
				    arg ? arg : "");
		return -1;
	}
	snprintf(job_class, sizeof(job_class), "%s", arg);
	return 0;
}

static struct spank_option option = {
	.name = "commensal",
	.arginfo = "guaranteed|opportunistic",
	.usage = "class of the job on shared GPUs",
	.has_arg = 1,
	.val = 0,
	.cb = on_option,
};

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	/* The same option in every context, or sbatch would not know it. */
	spank_context_t c = spank_context();
	if (c == S_CTX_LOCAL || c == S_CTX_REMOTE || c == S_CTX_ALLOCATOR)
		return spank_option_register(sp, &option) == ESPANK_SUCCESS ? 0 : -1;
	return 0;
}

/* In srun, sbatch and salloc: pass the class on to job_submit and to the hooks. */
int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	spank_context_t c = spank_context();
	if (!job_class[0] || (c != S_CTX_LOCAL && c != S_CTX_ALLOCATOR))
		return 0;
	return spank_job_control_setenv(sp, "COMMENSAL_CLASS", job_class, 1) == ESPANK_SUCCESS ? 0 : -1;
}

/* In slurmstepd, as the user, just before the task's program starts. */
int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	if (job_class[0])
		spank_setenv(sp, "COMMENSAL_CLASS", job_class, 1);
	return 0;
}
