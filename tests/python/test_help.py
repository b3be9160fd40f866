# SPDX-License-Identifier: Apache-2.0
"""`--help` of every command: purpose, examples, exit codes, environment, in 80 columns."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.main import get_group
from world import DEADLINE

from commensal import cli
from commensal.cli import main
from commensal.cli._manual import VARIABLES

COMMANDS = {
    *("run", "status", "top", "logs", "memory", "set", "pause", "resume"),
    *("profile", "doctor", "explain", "simulate", "demo", "version"),
    *("submit", "queue", "cancel", "nodes", "tenants", "quota", "drain", "undrain"),
    *("state", "backup", "page", "keys", "inputs"),
}
ENVIRONMENT = Path(__file__).parents[2] / "docs" / "environment.md"


def help_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main([*command, "--help"]) == 0
    return capsys.readouterr().out


def test_every_command_is_listed_with_its_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    listed = help_of(capsys).split("Commands:")[1].split("Examples:")[0]
    purposes = dict(re.findall(r"^  (\w+) +(\S.*)$", listed, re.MULTILINE))
    assert set(purposes) == COMMANDS
    assert not [purpose for purpose in purposes.values() if purpose.endswith("...")]  # cut off


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_says_what_one_needs_to_know(capsys: pytest.CaptureFixture[str], command: str) -> None:
    text = help_of(capsys, command)
    assert max(map(len, text.splitlines())) <= 80
    parts = ["Usage: commensal", "Options:", "Examples:", "Exit codes:"]
    places = [text.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    purpose = text.split("\n\n")[1].strip()
    assert purpose.endswith(".")
    assert command == "version" or "Environment:" in text


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_examples_use_options_that_exist(capsys: pytest.CaptureFixture[str], command: str) -> None:
    text = help_of(capsys, command)
    examples = text.split("Examples:")[1].split("Exit codes:")[0]
    lines = [line.strip() for line in examples.splitlines() if "commensal " in line]
    assert lines
    for line in lines:
        program, name, *rest = shlex.split(line.split("|")[0])
        assert (program, name) == ("commensal", command)
        ours = rest[: rest.index("--")] if "--" in rest else rest
        for option in (word for word in ours if word.startswith("-")):
            assert re.search(rf"(^| ){option}\b", text.split("Examples:")[0], re.MULTILINE), option


def test_variables_that_help_names_are_documented() -> None:
    documented = ENVIRONMENT.read_text()
    for name in VARIABLES:
        assert name in documented or name in ("NO_COLOR", "TMPDIR")


def test_each_command_is_in_the_module_that_is_named_for_it() -> None:
    made: dict[str, str] = {}
    for module in dict.fromkeys(cli._MODULES.values()):
        app = typer.Typer()
        import_module(f"commensal.cli.{module}").register(app)
        made |= dict.fromkeys(get_group(app).commands, module)
    assert made == cli._MODULES


def test_a_command_is_made_without_the_others() -> None:
    script = "import sys; from commensal.cli import main; main(['version']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE, check=True
    )
    modules = done.stdout.split()
    assert "commensal.cli.version" in modules
    assert not {"commensal.cli.run", "commensal.cli.submit", "commensal.cli.top"} & set(modules)


def test_a_name_that_is_none_is_told_with_those_like_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["undrian"]) == 2
    said = capsys.readouterr().err
    assert "'undrian'" in said
    if "Did you mean" in said:  # newer versions of typer
        assert "'undrain'" in said
