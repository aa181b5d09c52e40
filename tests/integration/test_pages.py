"""Run the code blocks of all pages but the tutorial, each in a separate folder.

The folder holds small files under the names in the pages, for blocks that read files.
"""

import fnmatch
import itertools
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import grammar_corpus
import pytest
from prep_tools.cleaning import read_pairs

from relu_nmt import Translator
from tests.commands import run_here, with_commands
from tests.markdown import code_blocks, command_lines, parts_of_line, without_dots
from tests.unit.vision.made_images import make_squares, zip_folder

ROOT = Path(__file__).parents[2]
COMPAT = ROOT / "tests/compat"
GUIDES = (
    "adapt your_own_data training translating documents terms several_corpora attention vision "
    "other_toolkits"
)
PATHS = ("README.md", *(f"docs/guide/{name}.md" for name in GUIDES.split()))
PAGES = {path: (ROOT / path).read_text("utf-8") for path in PATHS}
NOT_RUN = {
    "@article{*": "a reference",
    "python3 -m venv .venv *": "installs",
    "pip install *": "installs",
    "hf download *": "a download",
    "make demo": "fetches a corpus, and trains on it for minutes",
    "relu-nmt-import-marian nllb-200-*": "needs a download; test_m2m100.py makes such a folder",
    "relu-nmt-import-marian m2m100_*": "likewise",
    "from relu_nmt.jobs.preprocess import *": "test_jobs.py runs this block",
}
"""Lines of commands that are not run, and of other blocks that are not, and why."""
LAYERS = " ".join(
    f"--{side}-layers 2 --{side}-embed-dim 8 --{side}-ffn-embed-dim 16 --{side}-attention-heads 2"
    for side in ("encoder", "decoder")
)
SMALL = {
    "preprocess": "--subword-size 200 --workers 1",
    "train": f"{LAYERS} --max-update 2 --cpu",
    "sweep": f"{LAYERS} --cpu",
    **dict.fromkeys(("generate", "interactive", "translate_document"), "--cpu --max-len-b 20"),
    "vision_train": "--layers 1 --embed-dim 8 --heads 2 --max-update 2 --cpu",
    "vision_evaluate": "--cpu",
    "vision_classify": "--cpu",
    "python": "--documents 100",
}
"""Flags that are put at the end of a command and make it quick."""
SMALL_SWEEP = "--lengths 128 --attentions softmax --seeds 1 --budget 2u "
SMALL_SWEEP += "--generate-flags='--cpu --max-len-b 20'"
OUTPUTS = ("--destdir", "--save-dir", "--tensorboard-logdir", "--output", "--results", "--out", ">")
NAMED = {
    "relu-nmt-preprocess ... --document-separator": "data-bin/train.de-en.documents",
    "relu-nmt-train data-bin ... --max-tokens 8192": "checkpoints/document_lengths.json",
    "relu-nmt-sweep": "sweep/report.html sweep/results.csv sweep/card.json",
    "relu-nmt-convert checkpoint_best.safetensors --to onnx": "onnx-model/encoder.onnx "
    "onnx-model/decoder.onnx onnx-model/config.json",
}
"""Files that the pages say a command writes, by how its line begins."""


def write_memory(path, text):
    """Write the validation text as a translation memory."""
    units = ""
    for german, english in read_pairs(text / "valid.de", text / "valid.en"):
        if german:
            units += f'<tu><tuv xml:lang="de"><seg>{german}</seg></tuv>'
            units += f'<tuv xml:lang="en"><seg>{english}</seg></tuv></tu>'
    path.write_text(f'<tmx version="1.4"><body>{units}</body></tmx>')


@pytest.fixture(scope="module")
def page_files(tmp_path_factory):
    """Return files and folders by the names by which the pages read them."""
    folder = tmp_path_factory.mktemp("given")
    text = folder / "text"
    data = folder / "data"
    best = "checkpoint_best.safetensors"
    words = ["--out", str(text), "--documents", "100", "--held-out", "2"]
    grammar_corpus.make_corpus(grammar_corpus.make_parser().parse_args(words))
    words = ["--trainpref", text / "train", "--validpref", text / "valid", "--destdir", data]
    words += ["--testpref", text / "test", "--document-separator", "blank", "--padding-factor", 50]
    run_here("preprocess", *quick("preprocess", ["...", *words]))
    for arch, positions in (("transformer", "sinusoidal"), ("reluformer", "sinusoidal+rotary")):
        words = [data, "--sentence-separator", "--max-doc-tokens", 1, "--arch", f"{arch}_tiny"]
        words += ["--positions", positions, "--save-dir", folder / arch]
        run_here("train", *quick("train", ["...", *words]))
    # Train a model of sentences, to go on from.
    words = [data, "--arch", "transformer_tiny", "--save-dir", folder / "plain"]
    run_here("train", *quick("train", ["...", *words]))
    photos = make_squares(folder / "photos", 8)
    shutil.rmtree(photos / "blue")  # the model knows two classes
    zip_folder(photos, folder / "photos.zip")
    for name in ("train", "test"):
        shutil.copytree(photos, folder / "sets" / name)
    lines = (text / "test.de").read_text().splitlines()
    (folder / "prefixes").write_text("".join("She\n" if line else "\n" for line in lines))
    (folder / "terms").write_text("letter\n")
    write_memory(folder / "memory.tmx", text)
    files = {
        text: "text",
        folder / "memory.tmx": "memory.tmx",
        text / "train.de": "train.de new/train.de",
        text / "train.en": "train.en new/train.en",
        text / "valid.de": "new/valid.de",
        text / "valid.en": "new/valid.en",
        text / "test.de": "new.de text/new.de text.de talk.de",
        text / "test.en": "talk.en new.en reference.en test.en long.out short.out",
        data: "data-bin back-bin documents-bin documents",
        folder / "plain" / best: "model.safetensors soft.safetensors sentences.safetensors",
        folder / "transformer" / best: f"{best} softmax/{best} sentences/{best}",
        folder / "reluformer" / best: f"CKPT checkpoints/{best}",
        COMPAT / "fairseq_files/post_norm.pt": "checkpoint_best.pt",
        COMPAT / "files/data-joined/subword.codes": "codes",
        COMPAT / "marian_files": "opus-mt-de-en",
        COMPAT / "files/checkpoints/vit-class.safetensors": f"vit/{best} small/{best}",
        ROOT / "data_prep": "data_prep",
        photos: "photos photos/train photos/test",
        folder / "sets": "cifar10/plain_text imagenet",
        folder / "photos.zip": "train.zip test.zip",
        photos / "red/0000.png": "photo.jpg another.png",
        folder / "prefixes": "begin.en",
        folder / "terms": "never.txt",
    }
    paths = {}
    for path, names in files.items():
        paths |= dict.fromkeys(names.split(), path)
    return paths


def give(names, page_files):
    """Put the files with these names into the folder, unless they are there."""
    for name in names:
        if name in page_files and not Path(name).exists():
            Path(name).parent.mkdir(exist_ok=True, parents=True)
            copy = shutil.copytree if page_files[name].is_dir() else shutil.copy
            copy(page_files[name], name)


def quick(name, flags):
    """Return the flags of a command and flags that make it small."""
    flags = [*without_dots(name, flags)]
    if name == "sweep":
        at = flags.index("--")
        flags[at:at] = shlex.split(SMALL_SWEEP)
    if "--like" in flags:  # the model's subwords
        return [*flags, "--workers", "1"]
    further = SMALL.get(name, "")
    if "--budget" in flags:  # which says when the training ends
        further = further.replace("--max-update 2", "--budget 2u")
    return [*flags, *further.split()]


def run_line(line, page_files, environment):
    """Run a line of commands in the working directory."""
    if "import-fairseq" in line:  # the model's own
        page_files = {**page_files, "data-bin": COMPAT / "files/data-fairseq"}
    parts = parts_of_line(line)
    words = list(itertools.chain.from_iterable((sign, *behind) for sign, behind in parts))
    outputs = [word for flag, word in itertools.pairwise(words) if flag in OUTPUTS]
    names = []
    for word in words:
        names += [word, *word.split(","), word.split("/")[0], f"{word}.de", f"{word}.en"]
    give([name for name in names if name not in outputs], page_files)
    files = {sign: words_behind[0] for sign, words_behind in parts if sign in ("<", ">")}
    text = Path(files["<"]).read_text("utf-8") if "<" in files else ""
    for sign, (program, *flags) in parts:
        if sign in files:
            continue
        assert sign in ("", "|"), line
        name = program.removeprefix("relu-nmt-").replace("-", "_")
        if name == program:
            words = [program, *quick(name, flags)]
            text = subprocess.check_output(words, env=environment, input=text, text=True)
        else:
            text = run_here(name, *quick(name, flags), stdin=text).stdout
    if ">" in files:
        Path(files[">"]).write_text(text, "utf-8")
    for start, names_of_outputs in NAMED.items():
        if line.startswith(start):
            outputs += names_of_outputs.split()
    for path in outputs:
        assert Path(path).is_dir() or Path(path).stat().st_size, path


def run_python(text, page_files):
    """Run a Python block in the working directory."""
    give(re.findall(r'"(\S+)"', text), page_files)
    translator = Translator.from_checkpoint(page_files["CKPT"], "cpu")
    exec(text, {"translator": translator, "lines": ["Sie ist neu.", "Er ist alt."]})


def grouped(page):
    """Return the blocks of a page, Python ones with the commands before them."""
    groups = []
    for block in code_blocks(PAGES[page]):
        if block.language != "python" or not groups:
            groups.append([])
        groups[-1].append(block)
    return groups


def left_out(line):
    """Return the patterns of NOT_RUN that match a line."""
    return [pattern for pattern in NOT_RUN if fnmatch.fnmatchcase(line, pattern)]


def numbered_blocks():
    """Yield the pages with the number of each group of their blocks."""
    for page in PAGES:
        for number, _ in enumerate(grouped(page)):
            yield page, number


@pytest.mark.slow
@pytest.mark.parametrize(("page", "number"), list(numbered_blocks()))
def test_a_block_runs(page, number, page_files, tmp_path, monkeypatch, quick_python):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", quick_python)
    environment = with_commands(tmp_path / "bin", quick_python)
    give(["text", "train.de", "train.en"], page_files)
    for block in grouped(page)[number]:
        if block.language in ("", "sh"):
            for line in command_lines(block.text):
                if not left_out(line):
                    run_line(line, page_files, environment)
        elif block.language != "output" and not any(map(left_out, block.text.splitlines())):
            assert block.language == "python", "neither run nor in NOT_RUN"
            run_python(block.text, page_files)


def test_every_block_listed_as_not_run_is_in_the_pages():
    lines = "\n".join(PAGES.values()).splitlines()
    patterns = map(left_out, map(str.strip, lines))
    assert set(itertools.chain.from_iterable(patterns)) == NOT_RUN.keys()
