# SPDX-License-Identifier: Apache-2.0
"""One account has one coordinator, whatever folder a login, cron or a service names."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from world import COMMENSAL, DEADLINE, wait_until

from commensal._coordinator import Coordinator, Unreachable, settled
from commensal._environment import default_runtime_dir
from commensal._place import account_folders, where_listens

DAEMON = COMMENSAL.parent / "commensald"


class Account:
    """An account as its logins see it; with an instance of its own, as names are the machine's."""

    numbers = itertools.count()

    def __init__(self, folder: Path) -> None:
        self.instance = f"account-{os.getpid()}-{next(self.numbers)}"
        # Short: a socket's path has 107 bytes at most, and pytest's folders are long.
        self.session = Path(tempfile.mkdtemp(prefix="login-"))
        clean = {k: v for k, v in os.environ.items() if not k.startswith("COMMENSAL_")}
        clean.pop("XDG_RUNTIME_DIR", None)
        self.cron = clean | {"COMMENSAL_INSTANCE": self.instance, "HOME": str(folder)}
        self.login = self.cron | {"XDG_RUNTIME_DIR": str(self.session)}

    def run(self, environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=environ, capture_output=True, text=True, timeout=DEADLINE, check=False
        )

    def start(self, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return self.run(environ, str(DAEMON), "--idle-exit", "0")

    def pid(self, environ: dict[str, str]) -> int:
        """The coordinator that a command of this environment reaches; 0: none."""
        folder = where_listens(default_runtime_dir(environ), self.instance, environ)
        try:
            return int(Coordinator(self.instance, folder).status()["coordinator"]["pid"])
        except Unreachable:
            return 0

    def close(self) -> None:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("COMMENSAL_INSTANCE") == self.instance:
                    process.kill()
                    process.wait(DEADLINE)  # until then it has its name
        for folder in account_folders(self.login):
            for file in folder.glob(f"{self.instance}.*"):
                file.unlink()
        shutil.rmtree(self.session, ignore_errors=True)


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    account = Account(tmp_path)
    yield account
    account.close()


def test_each_environment_finds_the_same_coordinator(account: Account, tmp_path: Path) -> None:
    assert account.start(account.login).returncode == 0
    pid = account.pid(account.login)
    assert pid
    other_home = account.cron | {"HOME": str(tmp_path / "elsewhere")}
    status = account.run(account.cron, str(COMMENSAL), "status", "--json")
    assert json.loads(status.stdout)["coordinator"]["pid"] == pid
    for environ in (account.cron, other_home):
        assert account.pid(environ) == pid
        second = account.start(environ)
        assert second.returncode == 3
        assert f"runs in {account.session}/commensal already (pid {pid})" in second.stderr


def test_a_login_folder_that_is_made_anew_has_the_same_coordinator(account: Account) -> None:
    assert account.start(account.login).returncode == 0
    pid = account.pid(account.cron)
    shutil.rmtree(account.session)
    account.session.mkdir(mode=0o700)
    assert account.start(account.login).returncode == 3
    wait_until("its sockets are there again", lambda: account.pid(account.login) == pid)
    assert account.pid(account.cron) == pid


def test_after_a_logins_end_the_account_has_another_folder(account: Account) -> None:
    shutil.rmtree(account.session)
    assert account.start(account.login).returncode == 0
    assert not account.session.exists()
    pid = account.pid(account.login)
    assert pid and account.pid(account.cron) == pid


def test_a_folder_that_was_chosen_is_a_coordinators_own(account: Account, tmp_path: Path) -> None:
    assert account.start(account.login).returncode == 0
    chosen = account.cron | {"COMMENSAL_RUNTIME_DIR": str(tmp_path / "chosen")}
    assert account.pid(chosen) == 0
    assert where_listens(tmp_path / "chosen", account.instance) == tmp_path / "chosen"
    folder = default_runtime_dir(account.cron)
    assert where_listens(folder, account.instance, account.cron) == account.session / "commensal"


def test_a_start_that_another_one_came_before_finds_that() -> None:
    answers = iter([False, False, True])
    reason = "/bin/commensald ended with code 3: a coordinator 'x' runs in /run already (pid 7)"
    assert settled(reason, lambda: next(answers)) == ""
    assert settled("cannot start commensald: no", lambda: False) == "cannot start commensald: no"
    assert settled("", lambda: True) == ""


def test_nobody_who_listens_is_looked_for_in_the_folder(tmp_path: Path) -> None:
    login = tmp_path / "commensal"
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert account_folders(environ)[0] == login
    assert where_listens(login, "nobody-has-this", environ) == login
    assert not Coordinator("nobody-has-this", login).listens()
