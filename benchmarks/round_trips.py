"""Send texts through every command and count lines and round trips.

    python benchmarks/round_trips.py a.de-en.tsv b.en-ja.tsv.gz --lines 2000

Each table (source, tab, target; ``NAME.SOURCE-TARGET.tsv``) is preprocessed with Moses and with
SentencePiece, trains a tiny model for a few updates, is translated and scored. The printed table
has the numbers of given and of translated lines, and for each side the share of lines that
encoding and decoding change.
"""

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measuring import benchmark_parser, output_of

from relu_nmt.io.text_lines import iterate_lines, write_lines
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.task import TranslationTask

TEXT_STEPS = {
    "moses": ["--tokenizer", "moses", "--subword", "subword-nmt"],
    "sentencepiece": ["--subword", "sentencepiece"],
}


def changed(text: TextPipeline, lines: Sequence[str]) -> float:
    """Return the share of lines that encoding and decoding change, white space aside."""
    wrong = sum(text.decode(text.encode(line)) != " ".join(line.split()) for line in lines)
    return wrong / max(1, len(lines))


def cells_of(table: Path, text_steps: str, size: int, max_lines: int, folder: Path) -> list[str]:
    """Return the cells of one row.

    Args:
        table: file of tab-separated lines, whose last two columns are source and target.
        text_steps: name of the text steps.
        size: number of subwords.
        max_lines: lines to read.
        folder: folder of temporary files.
    """
    languages = table.name.removesuffix(".gz").split(".")[-2]
    source, target = languages.split("-")
    source_lines = []
    target_lines = []
    for line in itertools.islice(iterate_lines(table), max_lines):
        source_line, target_line = line.split("\t")[-2:]
        source_lines.append(source_line)
        target_lines.append(target_line)
    for language, lines in ((source, source_lines), (target, target_lines)):
        write_lines(folder / f"all.{language}", lines)
        write_lines(folder / f"few.{language}", lines[:100])
    data = str(folder / "bin")
    save = str(folder / "ck")
    pair = ["--source-lang", source, "--target-lang", target]
    texts = ["--trainpref", str(folder / "all"), "--validpref", str(folder / "few")]
    steps = [*TEXT_STEPS[text_steps], "--subword-size", str(size), "--joined-dictionary"]
    output_of("preprocess", [*pair, *texts, "--destdir", data, *steps])
    shape = ["--arch", "reluformer_tiny", "--max-tokens", "2000", "--max-update", "20"]
    output_of("train", [data, *shape, "--lr", "1e-3", "--save-dir", save])
    typed = (folder / f"few.{source}").read_bytes()
    checkpoint = str(Path(save, "checkpoint_last.safetensors"))
    limits = ["--path", checkpoint, "--beam", "2", "--max-len-a", "0", "--max-len-b", "20"]
    translations = output_of("interactive", [*limits, "--format", "json"], typed)
    task = TranslationTask.from_data_folder(data, source, target)
    num_translated = translations.count("\n")
    return [
        table.name,
        text_steps,
        f"{len(source_lines):,}",
        f"{min(100, max_lines)} / {num_translated}",
        f"{changed(task.source_text, source_lines):.1%}",
        f"{changed(task.target_text, target_lines):.1%}",
    ]


def main() -> None:
    """Print the table."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("tables", nargs="+", type=Path, metavar="NAME.SOURCE-TARGET.tsv")
    parser.add_argument("--lines", type=int, default=2000, help="lines per table (default: 2000)")
    parser.add_argument("--subword-size", type=int, default=4000, help="subwords (default: 4000)")
    arguments = parser.parse_args()
    print("| text | text steps | lines | translated: in / out | source changed | target changed |")
    print("| --- | --- | --- | --- | --- | --- |")
    for table, steps in itertools.product(arguments.tables, TEXT_STEPS):
        with tempfile.TemporaryDirectory() as folder:
            row = cells_of(table, steps, arguments.subword_size, arguments.lines, Path(folder))
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
