// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * SPANK plugin: gives srun, sbatch and salloc the option --commensal=guaranteed|opportunistic|auto,
 * and hands the class on
 *   - to job_submit.lua, prolog and epilog, as SPANK_COMMENSAL_CLASS
 *   - to every task, as COMMENSAL_CLASS: commensal run --$COMMENSAL_CLASS -- python train.py
 *
 * `sbatch --commensal=auto` becomes two jobs of Slurm, twins, of which one runs the script
 * (docs/slurm.md). sbatch has read its words and the script when the plugin sees the class; it forks
 * here twice, so that both twins are what the user asked for, wherever that stood: on the command
 * line, in lines of #SBATCH, in variables, in a script on standard input.
 *
 * plugstack.conf:  optional /path/commensal_spank.so
 *
 * Slurm's header is under the GPL, and so is this file: it is small and apart, and no other part of
 * the project is linked with it. Rebuild it for every major Slurm release: the interface of plugins
 * is not stable between them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(commensal, 1);

static char job_class[16];         /* empty: the option was not given */
static int is_twin;                /* this process submits one of a pair */

static int on_option(int val, const char *arg, int remote)
{
	(void)val;
	if (!arg || (strcmp(arg, "guaranteed") != 0 && strcmp(arg, "opportunistic") != 0 &&
		     strcmp(arg, "auto") != 0)) {
		if (!remote)
			slurm_error("--commensal takes guaranteed, opportunistic or auto, not '%s'",
				    arg ? arg : "");
		return -1;
	}
	snprintf(job_class, sizeof(job_class), "%s", arg);
	return 0;
}

static struct spank_option option = {
	.name = "commensal",
	.arginfo = "guaranteed|opportunistic|auto",
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

/* Whether sbatch would wait for the end of the job: the first twin would keep the second from being
 * submitted. Words after the script are the script's: getopt's optind is where they begin. */
static int is_to_wait(void)
{
	char words[4096];
	const char *wait = getenv("SBATCH_WAIT");
	int fd, n = 0, i = 0;
	size_t len = 0;
	ssize_t got;

	if (wait)
		return 1;
	fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	while (i < optind && (got = read(fd, words + len, 1)) == 1) {
		if (words[len] != '\0') {
			len += len < sizeof(words) - 2;
			continue;
		}
		if (i++ > 0 && (strcmp(words, "-W") == 0 || strcmp(words, "--wait") == 0))
			n = 1;
		len = 0;
	}
	close(fd);
	return n;
}

/* Ends the program: what an optional plugin returns is no reason for Slurm not to go on. */
static void refuse(const char *why)
{
	slurm_error("--commensal=auto %s: say guaranteed or opportunistic", why);
	exit(1);
}

/* Submits both twins, each by a child that goes on as sbatch; returns in the children alone. */
static void become_twins(spank_t sp)
{
	static const char *const classes[] = { "guaranteed", "opportunistic" };
	unsigned char random[8];
	char pair[2 * sizeof(random) + 1];
	size_t at;
	int i, status = 0;
	pid_t child;

	if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
		refuse("found no random number");
	for (at = 0; at < sizeof(random); at++)
		sprintf(pair + 2 * at, "%02x", random[at]);
	for (i = 0; i < 2; i++) {
		fflush(NULL);
		child = fork();
		if (child < 0) {
			slurm_error("--commensal=auto: cannot fork for the twin that is %s: %m", classes[i]);
			_exit(i == 0);
		}
		if (child == 0) {
			is_twin = 1;
			snprintf(job_class, sizeof(job_class), "%s", classes[i]);
			/* One id on standard output, as ever: that of the guaranteed twin. */
			if ((i == 1 && dup2(STDERR_FILENO, STDOUT_FILENO) < 0) ||
			    spank_job_control_setenv(sp, "COMMENSAL_PAIR", pair, 1) != ESPANK_SUCCESS)
				refuse("could not name the pair");
			if (i == 1)
				slurm_info("--commensal=auto: its twin in a seat:");
			return;
		}
		while (waitpid(child, &status, 0) < 0 && errno == EINTR)
			;
		if (status != 0 && i == 0)
			_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
	}
	if (status != 0)
		slurm_error("--commensal=auto: no twin of it in a seat; it waits as a guaranteed job");
	_exit(0);
}

/* In srun, sbatch and salloc: pass the class on to job_submit and to the hooks. */
int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	spank_context_t c = spank_context();
	if (!job_class[0] || (c != S_CTX_LOCAL && c != S_CTX_ALLOCATOR))
		return 0;
	if (is_twin)
		refuse("takes no heterogeneous job");
	if (strcmp(job_class, "auto") == 0) {
		if (c != S_CTX_ALLOCATOR || strcmp(program_invocation_short_name, "sbatch") != 0)
			refuse("is for sbatch");
		if (is_to_wait())
			refuse("does not go with --wait");
		become_twins(sp);
	}
	return spank_job_control_setenv(sp, "COMMENSAL_CLASS", job_class, 1) == ESPANK_SUCCESS ? 0 : -1;
}

/* Whether a batch script is the one that job_submit.lua makes of a twin's: without the rules both
 * twins would run what the user wrote. */
static int is_wrapped(spank_t sp)
{
	char line[256] = "", **words = NULL;
	int count = 0, found = 0, i;
	FILE *script;

	if (spank_get_item(sp, S_JOB_ARGV, &count, &words) != ESPANK_SUCCESS || count < 1)
		return 0;
	script = fopen(words[0], "re");
	for (i = 0; script && !found && i < 3 && fgets(line, sizeof(line), script); i++)
		found = strncmp(line, "# commensal-slurm-auto:", 23) == 0;
	if (script)
		fclose(script);
	return found;
}

/* In slurmstepd, as the user, just before the task's program starts. */
int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	if (strcmp(job_class, "auto") == 0) {
		if (is_wrapped(sp))
			return 0;  /* which says the class itself */
		slurm_error("--commensal=auto: the controller has no rules of commensal (job_submit.lua)");
		return -1;
	}
	if (job_class[0])
		spank_setenv(sp, "COMMENSAL_CLASS", job_class, 1);
	return 0;
}
