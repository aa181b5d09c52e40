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
    """Run a program in ``folder`` and return its output.

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
            env={**os.environ, "LC_ALL": "C"},  # the messages are looked at
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
    """Return the names of the system's package lists that start with ``beginning``.

    Raises:
        NoPackages: apt-cache is missing.
    """
    return sorted(_run(["apt-cache", "pkgnames", beginning], Path.cwd()).split())


def _is_whole(package: Path) -> bool:
    """Return whether the file is a package that can be read to its end."""
    command = ["dpkg-deb", "--contents", str(package)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _find(name: str, scratch: Path) -> Path | None:
    """Return the newest readable package of that name in ``scratch``."""
    for path in sorted(scratch.glob(f"{name}_*.deb"), reverse=True):
        if _is_whole(path):
            return path
    return None


class _Fetcher:
    """Fetches packages with the package lists that the system has, or else with fresh ones.

    Args:
        scratch: folder for packages and fresh package lists, so that no root rights are needed.
    """

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._options = IMPATIENT
        self._lists_are_fresh = False

    def _refresh(self) -> None:
        lists = self.scratch / "apt" / "lists"
        cache = self.scratch / "apt" / "cache"
        for folder in (lists / "partial", cache / "archives" / "partial"):
            folder.mkdir(parents=True, exist_ok=True)
        user = "root" if os.geteuid() == 0 else ""
        settings = (f"Dir::State::lists={lists}", f"Dir::Cache={cache}")
        for setting in (*settings, f"APT::Sandbox::User={user}"):
            self._options = [*self._options, "-o", setting]
        # Without this setting, apt-get update succeeds even without a network.
        update = ["apt-get", "update", "-o", "APT::Update::Error-Mode=any", *self._options]
        _run(update, self.scratch)
        self._lists_are_fresh = True

    def fetch(self, names: Sequence[str]) -> None:
        """Fetch packages into the scratch folder.

        Raises:
            NoPackages: a package cannot be fetched.
        """
        if not self._lists_are_fresh:
            try:
                _run(["apt-get", "download", *names, *self._options], self.scratch)
                return
            except NoPackages as error:
                say(f"  {error}; trying again with fresh package lists (about 10 MB)")
            self._refresh()
        _run(["apt-get", "download", *names, *self._options], self.scratch)


def is_unknown(error: NoPackages) -> bool:
    """Return whether the error means that no package of this name exists."""
    return "locate package" in str(error) or "candidate" in str(error)


def _fetch_known(names: Sequence[str], fetcher: _Fetcher) -> None:
    """Fetch the packages that exist.

    Raises:
        NoPackages: the network cannot be reached.
    """
    for name in names:
        try:
            fetcher.fetch([name])
        except NoPackages as error:
            if not is_unknown(error):
                raise
            say(f"  NOTE: there is no package {name} here; its pages are missing")


def download_packages(
    names: Sequence[str], scratch: Path, optional: Sequence[str] = ()
) -> dict[str, Path]:
    """Fetch packages, unless ``scratch`` holds them already.

    Args:
        names: the packages.
        scratch: folder for the packages, which is made if it does not exist.
        optional: further packages, which need not exist.

    Returns:
        The package file of each name.

    Raises:
        NoPackages: there is no apt, no network, or no such package.
    """
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise NoPackages(
                f"{program} is not installed: this corpus needs a Debian or Ubuntu system"
            )
    scratch.mkdir(parents=True, exist_ok=True)
    fetcher = _Fetcher(scratch)
    packages = {name: _find(name, scratch) for name in (*names, *optional)}
    missing = [name for name in names if packages[name] is None]
    if missing:
        say(f"fetching the packages {', '.join(missing)}")
        fetcher.fetch(missing)
    missing_optional = [name for name in optional if packages[name] is None]
    if missing_optional:
        say(f"fetching {len(missing_optional)} more packages")
        try:
            fetcher.fetch(missing_optional)
        except NoPackages as error:
            if not is_unknown(error):
                raise
            _fetch_known(missing_optional, fetcher)
    for name in (*missing, *missing_optional):
        packages[name] = _find(name, scratch)
        if packages[name] is None and name in missing:
            raise NoPackages(f"apt-get download {name} left no readable package in {scratch}")
    return {name: package for name, package in packages.items() if package is not None}


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
