"""Texts from packages of the system's own package source, without installing anything.

``apt-get download`` fetches a package into a scratch folder and ``dpkg-deb -x`` unpacks it there:
no root rights are needed, and nothing on the system changes.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from prep_tools.command import PrepError, say

TIMEOUT_SECONDS = 600
# Without a network, give up soon: the caller has another corpus.
IMPATIENT = ["-o", "Acquire::Retries=1"]
IMPATIENT += ["-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20"]


class NoPackages(PrepError):
    """The packages cannot be had on this machine: no apt, no network, no such language."""


def _run(command: Sequence[str], folder: Path) -> str:
    """Run a program in ``folder`` and return what it printed.

    Raises:
        NoPackages: it is missing, failed, or took too long.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoPackages(f"{command[0]} does not work here: {error}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith(("E:", "dpkg"))]
        reason = lines[0] if lines else done.stderr.strip()[-200:]
        raise NoPackages(f"'{' '.join(command[:2])}' failed: {reason}")
    return done.stdout


def known_packages(beginning: str) -> list[str]:
    """Return the names with this beginning that the system's package lists have.

    Raises:
        NoPackages: there is no apt-cache.
    """
    return sorted(_run(["apt-cache", "pkgnames", beginning], Path.cwd()).split())


def _private_state(scratch: Path) -> list[str]:
    """Return the options that make apt keep its package lists in ``scratch``: needs no root."""
    lists, cache = scratch / "apt" / "lists", scratch / "apt" / "cache"
    for folder in (lists / "partial", cache / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    return [
        "-o",
        f"Dir::State::lists={lists}",
        "-o",
        f"Dir::Cache={cache}",
        "-o",
        "APT::Sandbox::User=" + ("root" if os.geteuid() == 0 else ""),
    ]


def _is_whole(package: Path) -> bool:
    """Say whether the file is a package that can be read to its end."""
    command = ["dpkg-deb", "--contents", str(package)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _find(name: str, scratch: Path) -> Path | None:
    """Return the newest readable package of that name in ``scratch``."""
    whole = [path for path in sorted(scratch.glob(f"{name}_*.deb")) if _is_whole(path)]
    return whole[-1] if whole else None


def _download(name: str, scratch: Path) -> None:
    """Fetch a package with the package lists that the system has, or else with fresh ones.

    Raises:
        NoPackages: it cannot be had.
    """
    try:
        _run(["apt-get", "download", name, *IMPATIENT], scratch)
        return
    except NoPackages as error:
        say(f"  {error}; trying again with fresh package lists (about 10 MB)")
    options = [*IMPATIENT, *_private_state(scratch)]
    fresh = scratch / "apt" / "updated"
    if not fresh.exists():
        # By default apt-get update succeeds without a network.
        _run(["apt-get", "update", "-o", "APT::Update::Error-Mode=any", *options], scratch)
        fresh.touch()
    _run(["apt-get", "download", name, *options], scratch)


def download_packages(names: Sequence[str], scratch: Path) -> dict[str, Path]:
    """Fetch packages, unless ``scratch`` holds them already.

    Returns:
        Name to package file.

    Raises:
        NoPackages: there is no apt, no network, or no such package.
    """
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise NoPackages(
                f"{program} is not installed: this corpus needs a Debian or Ubuntu system"
            )
    scratch.mkdir(parents=True, exist_ok=True)
    found: dict[str, Path] = {}
    for name in names:
        package = _find(name, scratch)
        if package is None:
            say(f"fetching the package {name}")
            _download(name, scratch)
            package = _find(name, scratch)
        if package is None:
            raise NoPackages(f"apt-get download {name} left no readable package in {scratch}")
        found[name] = package
    return found


def unpack(package: Path, folder: Path) -> Path:
    """Unpack a package into ``folder``, unless that is there, and return ``folder``.

    Raises:
        NoPackages: dpkg-deb failed.
    """
    if not folder.exists():
        temporary = folder.with_name(folder.name + ".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        _run(["dpkg-deb", "-x", str(package), str(temporary)], package.parent)
        temporary.rename(folder)
    return folder
