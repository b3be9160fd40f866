# SPDX-License-Identifier: Apache-2.0
"""Where a coordinator listens, whatever folder an environment names."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

__all__ = ["account_folders", "where_listens"]

_PATIENCE = 0.5  # seconds


def account_folders(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the folders of an account's coordinators unless somebody chose another.

    A login, cron and a service have different ones; they mean the same coordinator.
    """
    session, user = environ.get("XDG_RUNTIME_DIR"), os.geteuid()
    folders = [Path(session) / "commensal"] if session else []
    return [*folders, Path(f"/run/user/{user}/commensal"), Path(f"/tmp/commensal-{user}")]


def where_listens(folder: Path, instance: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the coordinator that is meant by `folder`.

    For one of `account_folders` it is asked, by the name that it has in the kernel
    (coordinator/wire/kernel_name.h), as far as one answers; any other folder is meant as it is.
    """
    if folder not in account_folders(environ):
        return folder
    told = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(_PATIENCE)
            line.connect(f"\0commensald-{os.geteuid()}-{instance}")
            credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("iII", credentials)[1] != os.geteuid():
                return folder  # any process may take a name
            while part := line.recv(4096):
                told += part
    except OSError:
        return folder
    return Path(os.fsdecode(told)) if told else folder
