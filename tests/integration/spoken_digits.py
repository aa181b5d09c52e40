"""Texts of digits in German and English, and relu-nmt-preprocess on them."""

import random
import struct

from relu_nmt.cli.preprocess import main
from tests.commands import command_line

GERMAN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def write_corpus(folder, prefix, count, seed, ends="\n"):
    """Numbers spoken digit by digit, in both languages, some lines blank."""
    generator = random.Random(seed)
    lines = {"de": [], "en": []}
    for i in range(count):
        digits = [generator.randrange(10) for _ in range(generator.randint(1, 9))]
        if i % 11 == 10:
            digits = []
        lines["de"].append(" ".join(GERMAN[d] for d in digits))
        lines["en"].append(" ".join(ENGLISH[d] for d in digits))
    for language, of_language in lines.items():
        text = ends.join(of_language)
        (folder / f"{prefix}.{language}").write_bytes(text.encode())


def run(corpus, *flags, dest="data", splits=("train", "valid", "test")):
    """Run the command in this process alone, unless the flags have other --workers."""
    arguments = ["-s", "de", "-t", "en", "--destdir", str(corpus / dest), "--workers", "1"]
    for split in splits:
        arguments += [f"--{split}pref", str(corpus / split)]
    return main(command_line([arguments, flags]))


def fail_after(calls, function):
    """Return a function that is interrupted after some calls."""
    left = [calls]

    def wrapper(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return function(*arguments)

    return wrapper


def sentences_of(prefix):
    """The sentences of a binarized file, read independently of the package."""
    index = prefix.with_name(prefix.name + ".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, count = struct.unpack_from("<QBQ", index, 9)
    assert (version, code) == (1, 8)
    sizes = struct.unpack_from(f"<{count}i", index, 26)
    starts = struct.unpack_from(f"<{count}q", index, 26 + 4 * count)
    assert len(index) == 26 + 12 * count
    data = prefix.with_name(prefix.name + ".bin").read_bytes()
    return [
        list(struct.unpack_from(f"<{size}H", data, start))
        for size, start in zip(sizes, starts, strict=True)
    ]
