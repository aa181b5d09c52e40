import os

import pytest
from prep_tools.debian_packages import NoPackages, download_packages, unpack

# Knows "a" at once, "b" after an update, and no other. A package is an empty file.
APT_GET = """#!/bin/sh
echo "$1" >> {log}
if [ "$1" = update ]; then touch {log}.updated; exit; fi
shift
for name; do
  case $name in
    a) ;;
    b) [ -e {log}.updated ] || {{ echo "E: Unable to locate package b" >&2; exit 100; }} ;;
    offline) echo "E: Failed to fetch" >&2; exit 100 ;;
    -o) break ;;
    *) echo "E: Unable to locate package $name" >&2; exit 100 ;;
  esac
done
for name; do
  [ "$name" = -o ] && break
  touch "${{name}}_1_all.deb"
done
"""
DPKG_DEB = """#!/bin/sh
[ "$1" = --contents ] && exit
case $2 in */bad_*) echo "dpkg-deb: error: damaged" >&2; exit 2 ;; esac
mkdir -p "$3/usr"
"""


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Programs that stand for apt-get and dpkg-deb. The file lists what apt-get was asked."""
    programs = tmp_path / "bin"
    programs.mkdir()
    path = tmp_path / "log"
    for name, text in (("apt-get", APT_GET.format(log=path)), ("dpkg-deb", DPKG_DEB)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return path


def test_a_known_package_is_downloaded(log, tmp_path):
    packages = download_packages(["a"], tmp_path / "scratch")
    assert packages == {"a": tmp_path / "scratch/a_1_all.deb"}
    assert download_packages(["a"], tmp_path / "scratch") == packages
    assert log.read_text().split() == ["download"]


def test_fresh_lists_are_fetched_once(log, tmp_path):
    packages = download_packages(["a", "b"], tmp_path / "scratch", optional=["x", "y"])
    assert sorted(packages) == ["a", "b"]
    assert log.read_text().split().count("update") == 1


def test_a_package_that_does_not_exist_is_an_error(log, tmp_path):
    with pytest.raises(NoPackages, match="Unable to locate package x"):
        download_packages(["a", "x"], tmp_path / "scratch")


def test_optional_packages_need_a_network_too(log, tmp_path):
    with pytest.raises(NoPackages, match="Failed to fetch"):
        download_packages(["a"], tmp_path / "scratch", optional=["offline"])


def test_unpacking_leaves_no_half_folder(log, tmp_path):
    assert (unpack(tmp_path / "a_1.deb", tmp_path / "a") / "usr").is_dir()
    with pytest.raises(NoPackages, match="damaged"):
        unpack(tmp_path / "bad_1.deb", tmp_path / "bad")
    assert not (tmp_path / "bad").exists()
