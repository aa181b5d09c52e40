"""Small archives of the same structure as the original ones, filled with made text."""

import io
import tarfile

WORDS = ("blau", "rot", "alt", "neu", "lang", "kurz", "warm", "kalt", "hell", "tief")


def words(number: int, language: str) -> str:
    """A sentence of four words and a full stop that no other number has."""
    digits = f"{number:04d}"
    return " ".join(WORDS[int(digit)] + language for digit in digits) + "."


def make_tar(path, files):
    """Write a compressed tar archive of name -> text."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            data = text.encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def segments(sentences) -> str:
    """The text of a test set with one segment per sentence."""
    lines = [f'<seg id="{number}"> {text} </seg>' for number, text in enumerate(sentences, 1)]
    return "\n".join(["<?xml version='1.0'?>", "<mteval>", "<doc>", *lines, "</doc>", "</mteval>"])
