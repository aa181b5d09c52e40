"""Feeds a million damaged files to the readers: ``make fuzz``.

    python -m tests.fuzz.run [--inputs N] [--seed N] [READER ...]
    python -m tests.fuzz.run --input FILE

atheris makes them of the whole files of ``readers.py``, guided by what of the package they reach.
The first byte chooses the reader. Anything but a ReluNmtError of one line, an input that takes
longer than TIMEOUT_SECONDS and memory above MEMORY_MB end the run, and the input is kept in
FAILURES, to be read again with ``--input``.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

TIMEOUT_SECONDS = 60
MEMORY_MB = 3000
INPUTS = 1_000_000
FAILURES = Path("fuzz-failures")
COUNTED_EVERY = 1000


def fuzz(folder: Path, flags: list[str], chosen: list[str]) -> None:
    """Fuzz in this process, which ends here. How many inputs each reader got is noted.

    Args:
        folder: for the files that are read, and the counts.
        flags: of libFuzzer.
        chosen: names of readers. None for all.
    """
    import atheris

    with atheris.instrument_imports(include=["relu_nmt"]):
        from tests.fuzz.readers import READERS, read_or_refuse
    names = list(READERS)
    counts = Counter()
    corpus = folder / "corpus"
    corpus.mkdir()
    paths = {}
    for number, (name, reader) in enumerate(READERS.items()):
        reader_folder = folder / str(number)
        reader_folder.mkdir()
        reader.prepare(reader_folder)
        paths[name] = reader_folder / reader.file
        for index, contents in enumerate(reader.wholes() if name in (chosen or names) else []):
            (corpus / f"{number}-{index}").write_bytes(bytes([number]) + contents)

    def one_input(content: bytes) -> None:
        name = names[content[0] % len(names)] if content else names[0]
        if chosen and name not in chosen:
            return
        read_or_refuse(READERS[name], paths[name], content[1:])
        counts[name] += 1
        if counts.total() % COUNTED_EVERY == 0:
            (folder / "counts.json").write_text(json.dumps(counts))

    files = [flag for flag in flags if not flag.startswith("-")] or [str(corpus)]
    options = [flag for flag in flags if flag.startswith("-")]
    atheris.Setup([sys.argv[0], *options, *files], one_input)
    atheris.Fuzz()


def main() -> None:
    """Fuzz in a separate process, and tell how it ended."""
    if sys.argv[1:2] == ["--in-this-process"]:
        folder, flags, chosen = json.loads(sys.argv[2])
        fuzz(Path(folder), flags, chosen)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=INPUTS)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**31 or 1)
    parser.add_argument("--input", help="a file that is read once")
    parser.add_argument("readers", nargs="*")
    options = parser.parse_args()
    FAILURES.mkdir(exist_ok=True)
    flags = [f"-timeout={TIMEOUT_SECONDS}", f"-rss_limit_mb={MEMORY_MB}", "-print_final_stats=1"]
    flags += [f"-runs={options.inputs}", f"-seed={options.seed}", f"-artifact_prefix={FAILURES}/"]
    if options.input:
        flags = [options.input]
    print(f"{options.inputs:,} inputs, --seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        task = json.dumps([folder, flags, options.readers])
        program = [sys.executable, "-m", "tests.fuzz.run", "--in-this-process", task]
        start = time.monotonic()
        done = subprocess.run(program, stderr=subprocess.PIPE, text=True, check=False)
        counted = Path(folder) / "counts.json"
        counts = json.loads(counted.read_text()) if counted.exists() else {}
    for name, count in counts.items():
        print(f"  {name}: {count:,}")
    stats = dict(re.findall(r"stat::(\w+): +(\d+)", done.stderr))
    print(
        f"{stats.get('number_of_executed_units', '?')} inputs in {time.monotonic() - start:.0f} "
        f"seconds, at most {stats.get('peak_rss_mb', '?')} MB, "
        f"{'FAILED' if done.returncode else 'documented errors only'}"
    )
    sys.exit(done.stderr[-4000:] if done.returncode else 0)


if __name__ == "__main__":
    main()
