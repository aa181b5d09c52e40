"""Makes the files that test_old_files.py reads, with the code of an older revision.

    git worktree add OLD ebcc9fd
    PYTHONPATH=OLD OMP_NUM_THREADS=1 python tests/compat/make_fixtures.py

The files in the repository were made so, at that revision: the last one before the layers, the
settings and the data of documents were rewritten. They are never made again with newer code, which
would compare it with itself. What a later revision adds gets new files and cases:
``python tests/compat/make_fixtures.py NAME`` makes the files of one.

``version2``, with checksums in the file, is of revision 4ffc2a7.

Everything in them is generated: pairs of German and English number words in documents of a few
lines, and pictures of one of two colors.
"""

import io
import json
import random
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
import cases
from cases import FILES

GERMAN = "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf"
ENGLISH = "zero one two three four five six seven eight nine ten eleven twelve"
DOCUMENTS = {"train": 30, "valid": 4, "test": 5}
COLORS = {"green": (30, 200, 60), "red": (200, 40, 30)}
PICTURES = {"train": 8, "val": 4}


def joined(words: list[str], and_word: str) -> str:
    """Return the words as a list in a sentence: a, b and c."""
    *first, last = words
    start = f"{' , '.join(first)} {and_word} " if first else ""
    return f"{start}{last} .".replace(" ,", ",").replace(" .", ".")


def write_text(folder: Path) -> None:
    """Write documents of number words, and prepared text without documents."""
    folder.mkdir(parents=True)
    rng = random.Random(11)
    for split, count in DOCUMENTS.items():
        texts: dict[str, list[str]] = {"de": [], "en": []}
        for _ in range(count):
            lines = [rng.choices(range(13), k=rng.randint(1, 4)) for _ in range(rng.randint(1, 5))]
            for language, words, and_word in (("de", GERMAN, "und"), ("en", ENGLISH, "and")):
                text = ""
                for line in lines:
                    text += joined([words.split()[n] for n in line], and_word) + "\n"
                texts[language].append(text)
        for language, documents in texts.items():
            (folder / f"{split}.{language}").write_text("\n".join(documents), encoding="utf-8")
    for language, words in (("de", GERMAN), ("en", ENGLISH)):
        rng = random.Random(12)
        lines = [" ".join(rng.choices(words.split(), k=rng.randint(1, 6))) for _ in range(30)]
        (folder / f"plain.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_images(file: Path) -> None:
    """Write a zip file of small pictures in folders of splits and classes."""
    rng = random.Random(13)
    with zipfile.ZipFile(file, "w") as archive:
        for split, count in PICTURES.items():
            for name, color in COLORS.items():
                for number in range(count):
                    picture = Image.new("RGB", (8, 8), (rng.randrange(90),) * 3)
                    x, y = rng.randrange(4), rng.randrange(4)
                    picture.paste(color, (x, y, x + 4, y + 4))
                    content = io.BytesIO()
                    picture.save(content, "PNG")
                    archive.writestr(f"{split}/{name}/{number}.png", content.getvalue())


def train(command: str, flags: str, max_update: int, name: str) -> None:
    """Run a training command as a program. Keep its last checkpoint.

    Relative paths only, since checkpoints store the flags.
    """
    flags += f" --max-update {max_update} --save-dir run"
    program = [sys.executable, "-m", f"relu_nmt.cli.{command}", *flags.split()]
    subprocess.run(program, cwd=FILES, check=True, stdout=subprocess.DEVNULL)
    target = FILES / cases.checkpoint(name)
    target.parent.mkdir(exist_ok=True)
    shutil.move(FILES / "run/checkpoint_last.safetensors", target)
    shutil.rmtree(FILES / "run")


def average_with_earlier(name: str) -> None:
    """Store the mean of a model with the one it was before."""
    train("train", cases.CASES[name].training_flags(), cases.UPDATES - 50, "earlier")
    earlier = cases.checkpoint("earlier")
    averaged = cases.checkpoint(cases.AVERAGED)
    inputs = f"{earlier} {cases.checkpoint(name)}"
    cases.run_command("average", f"--inputs {inputs} --output {averaged}")
    (FILES / earlier).unlink()


def write_expected(name: str, outputs: dict[str, list]) -> None:
    """Store what the code made, a value a line."""
    (FILES / "expected").mkdir(exist_ok=True)
    parts = []
    for key, values in outputs.items():
        lines = ",\n".join(f"  {json.dumps(value, ensure_ascii=False)}" for value in values)
        parts.append(f"{json.dumps(key)}: [\n{lines}\n ]")
    text = "{\n " + ",\n ".join(parts) + "\n}\n"
    cases.expected_file(name).write_text(text, encoding="utf-8")


def make_files() -> None:
    """Write text, pictures, data folders and checkpoints."""
    write_text(FILES / "text")
    write_images(FILES / cases.IMAGES)
    cases.preprocess(cases.DATA)
    cases.preprocess_prepared(cases.FAIRSEQ_DATA)
    for extra in (*(FILES / cases.FAIRSEQ_DATA).glob("*.raw"), "manifest.json"):
        (FILES / cases.FAIRSEQ_DATA / extra).unlink()  # what is left is what fairseq makes
    for name, case in cases.CASES.items():
        if name in cases.LATER:
            continue
        train("train", case.training_flags(), cases.UPDATES, name)
    average_with_earlier("softmax")
    for name, flags in cases.IMAGE_CASES.items():
        flags = f"{cases.IMAGES} {cases.IMAGE_SHAPE} {flags}"
        train("vision_train", flags, cases.IMAGE_UPDATES, name)


def write_outputs() -> None:
    """Store what the code makes of the files."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in cases.CASES.keys() - set(cases.LATER):
            write_expected(name, cases.outputs_of_model(name))
            write_expected(f"{name}-resumed", cases.resume(name, Path(scratch) / name))
        for name in cases.IMAGE_CASES:
            resumed = cases.resume_images(name, Path(scratch) / name)
            write_expected(f"{name}-resumed", resumed)
    for name in (cases.AVERAGED, cases.ENSEMBLE):
        write_expected(name, cases.outputs_of_model(name))
    write_expected("document", {"lines": cases.translate_document()})


def make_case(name: str) -> None:
    """Store the checkpoint of one case, and what the code makes of it."""
    train("train", cases.CASES[name].training_flags(), cases.UPDATES, name)
    separators = "--sentence-separator" in cases.CASES[name].train
    write_expected(name, cases.outputs_of_model(name, separators))
    with tempfile.TemporaryDirectory() as scratch:
        write_expected(f"{name}-resumed", cases.resume(name, Path(scratch) / name))


if __name__ == "__main__" and len(sys.argv) > 1:
    torch.set_num_threads(1)
    for added in sys.argv[1:]:
        make_case(added)
elif __name__ == "__main__":
    torch.set_num_threads(1)
    shutil.rmtree(FILES, ignore_errors=True)
    make_files()
    write_outputs()
