"""Send texts through every command and count lines and round trips.

    python benchmarks/round_trips.py a.de-en.tsv b.en-ja.tsv.gz --lines 2000

Each table (source, tab, target; ``NAME.SOURCE-TARGET.tsv``) is preprocessed with Moses and with
SentencePiece, trains a tiny model for a few updates, is translated and scored. The printed table
has for each side the number of given lines, of translated lines, and the share of lines that
encoding and decoding change.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from relu_nmt.io.text_lines import iterate_lines, write_lines
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.task import TranslationTask

WAYS = {
    "moses": ["--tokenizer", "moses", "--subword", "subword-nmt"],
    "sentencepiece": ["--subword", "sentencepiece"],
}


def command(name: str, *words: str, given: bytes = b"") -> str:
    """Run a command with standard input. Return its standard output."""
    call = [sys.executable, "-m", f"relu_nmt.cli.{name}", *words]
    ended = subprocess.run(call, capture_output=True, check=False, input=given)
    if ended.returncode:
        sys.exit(f"{' '.join(call)}: {ended.stderr.decode()}")
    return ended.stdout.decode()


def changed(text: TextPipeline, lines: Sequence[str]) -> float:
    """Return the share of lines that encoding and decoding change, white space aside."""
    wrong = sum(text.decode(text.encode(line)) != " ".join(line.split()) for line in lines)
    return wrong / max(1, len(lines))


def walk(table: Path, way: str, size: int, most: int, folder: Path) -> list[str]:
    """Return the cells of one row."""
    source, target = table.name.split(".")[-2 - (table.suffix == ".gz")].split("-")
    rows = itertools.islice((line.split("\t")[-2:] for line in iterate_lines(table)), most)
    sides = [*zip(*rows, strict=True)]
    for language, lines in zip((source, target), sides, strict=True):
        write_lines(folder / f"all.{language}", lines)
        write_lines(folder / f"few.{language}", lines[:100])
    data = str(folder / "bin")
    save = str(folder / "ck")
    pair = ["--source-lang", source, "--target-lang", target]
    texts = ["--trainpref", str(folder / "all"), "--validpref", str(folder / "few")]
    steps = [*WAYS[way], "--subword-size", str(size), "--joined-dictionary"]
    command("preprocess", *pair, *texts, "--destdir", data, *steps)
    shape = ["--arch", "reluformer_tiny", "--max-tokens", "2000", "--max-update", "20"]
    command("train", data, *shape, "--lr", "1e-3", "--save-dir", save)
    given = (folder / f"few.{source}").read_bytes()
    checkpoint = str(Path(save, "checkpoint_last.safetensors"))
    limits = ["--path", checkpoint, "--beam", "2", "--max-len-a", "0", "--max-len-b", "20"]
    found = command("interactive", *limits, "--format", "json", given=given)
    task = TranslationTask.from_data_folder(data, source, target)
    pipelines = (task.source_text, task.target_text)
    shares = [f"{changed(*each):.1%}" for each in zip(pipelines, sides, strict=True)]
    out = found.count("\n")
    return [table.name, way, f"{len(sides[0]):,}", f"{min(100, most)} / {out}", *shares]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="+", type=Path, metavar="NAME.SOURCE-TARGET.tsv")
    parser.add_argument("--lines", type=int, default=2000, help="lines of each (default: 2000)")
    parser.add_argument("--subword-size", type=int, default=4000, help="subwords (default: 4000)")
    arguments = parser.parse_args()
    print("| text | text steps | lines | translated: in / out | source changed | target changed |")
    print("| --- | --- | --- | --- | --- | --- |")
    for table, way in itertools.product(arguments.tables, WAYS):
        with tempfile.TemporaryDirectory() as folder:
            row = walk(table, way, arguments.subword_size, arguments.lines, Path(folder))
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
