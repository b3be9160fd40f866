# SPDX-License-Identifier: Apache-2.0
"""The last part of every command's --help: examples, exit codes, environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["EXIT_CODES", "VARIABLES", "manual"]

EXIT_CODES = {
    0: "done",
    1: "something is broken",
    2: "usage: an unknown option or a wrong value, named on stderr",
    3: "no coordinator answers",
    4: "refused, with the reason on stderr",
}

VARIABLES = {
    "COMMENSAL_INSTANCE": "which coordinator, as --instance",
    "COMMENSAL_RUNTIME_DIR": "folder of its sockets, as --runtime-dir",
    "COMMENSAL_STATE_DIR": "folder of what a cluster must not forget",
    "COMMENSAL_COORDINATOR": "a remote one, as --coordinator",
    "COMMENSAL_KEY": "name of the key for it (default: client)",
    "COMMENSAL_KEYS_DIR": "folder of keys (default: ~/.config/commensal/keys)",
    "COMMENSAL_SPILL_DIR": "folder of the spill file, as --spill-dir of 'run'",
    "COMMENSAL_GPU_MEMORY": "native or elastic, as --gpu-memory",
    "COMMENSAL_ASK_WAIT": "wait for others' memory, as --ask-wait",
    "COMMENSAL_SAMPLE_OPS": "0: the ops of a guaranteed job are never sampled",
    "COMMENSAL_PARK_IDLE": "when to park an idle job, as --park-idle",
    "COMMENSAL_SM_SHARE": "part of a GPU, as --sm-share",
    "CUDA_MPS_PIPE_DIRECTORY": "where NVIDIA's MPS is looked for",
    "NO_COLOR": "set to anything: no colours on a terminal either",
    "TMPDIR": "where files that are needed for a while are made",
}
_OF_A_COORDINATOR = ("COMMENSAL_INSTANCE", "COMMENSAL_RUNTIME_DIR")


def manual(
    examples: Sequence[tuple[str, str]],
    codes: Mapping[int | str, str] | Sequence[int],
    variables: Sequence[str] = _OF_A_COORDINATOR,
) -> str:
    """Return an epilog: (command line, what it does) each, exit codes, variables that are read.

    `codes` are those of `EXIT_CODES`, or a mapping where a command means something else by them.
    """
    meanings = codes if isinstance(codes, Mapping) else {code: EXIT_CODES[code] for code in codes}
    sections = {
        "Examples": [line for command, what in examples for line in (command, f"    {what}")],
        "Exit codes": [f"{code!s:<5} {meaning}" for code, meaning in meanings.items()],
        "Environment": [f"{name:<23} {VARIABLES[name]}" for name in variables],
    }
    # \b keeps the lines of a paragraph as they are.
    return "\n\n".join(
        "\n".join(["\b", f"{title}:", *(f"  {line}" for line in lines)])
        for title, lines in sections.items()
        if lines
    )
