"""Count the files of the package that a reader opens to follow four walks through it.

    PYTHONPATH=CHECKOUT python benchmarks/walks.py [--list]

pair      one sentence pair from raw text to gradient: preprocessing and one update
line      one typed line to its translation by a loaded model
gamma     ``gamma`` from the flag --attention to the kernel
document  a document from raw text to the batch of a training

For ``pair`` and ``line`` a file counts if one of its functions runs. For ``gamma`` and ``document``
a file counts if a function holds the followed value, in a variable or in an attribute that the
function reads. This value is a number that occurs nowhere else, or a rare word, as text or as token
id. The names of the variables are counted, too. All modules are imported first, so that code that
runs on import does not count.
"""

import inspect
import io
import itertools
import os
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from measuring import benchmark_parser

import relu_nmt
from relu_nmt.cli import preprocess, train
from relu_nmt.io.text_lines import read_lines
from relu_nmt.translator import Translator

PACKAGE = Path(relu_nmt.__file__).parent
GAMMA = 2.71875
RARE_WORD = "zzyzx"
SHAPE = (
    "--arch transformer_tiny --encoder-layers 1 --decoder-layers 1 --share-all-embeddings --cpu "
    "--max-update 1 --disable-validation --num-workers 0 --log-format none --max-tokens 2000 "
    f"--attention reluformer:gamma={GAMMA} --attention-backend blockwise"
)


class Walk:
    """The files whose functions run, or hold the followed value.

    Args:
        holds: test if a value is, or contains, the followed one, or None to count all functions.
        until: name of a function whose call ends the walk.
    """

    def __init__(
        self, holds: Callable[[Any], bool] | None = None, until: str | None = None
    ) -> None:
        self.files: dict[str, None] = {}
        self.names: dict[str, None] = {}
        self._holds = holds
        self._until = until
        self._over = False

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Count the functions that run inside the ``with`` block, in all threads."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # neither a module nor a class body
        if self._over or not is_function or event not in ("call", "return"):
            return
        if not code.co_filename.startswith(str(PACKAGE)):
            return
        if event == "call" and code.co_name == self._until:
            self._over = True
            return
        file = str(Path(code.co_filename).relative_to(PACKAGE))
        if self._holds is None:
            self.files[file] = None
        elif event == "return":
            for name in self._names_that_hold(frame):
                self.files[file] = None
                self.names[name] = None

    def _names_that_hold(self, frame: FrameType) -> Iterator[str]:
        for name, value in list(frame.f_locals.items()):
            if self._shows(value):
                yield name
            attributes = getattr(value, "__dict__", {})
            for attribute in frame.f_code.co_names:
                if attribute in attributes and self._shows(attributes[attribute]):
                    yield attribute

    def _shows(self, value: Any) -> bool:
        """Return whether a value, or a member of it, is the followed one."""
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            return any(map(self._holds, value[:1000]))
        return self._holds(value)


def is_gamma(value: Any) -> bool:
    """Return whether a value is gamma as text or number, or has the factor 1 / gamma of a row.

    The factor 1 / (gamma sqrt(n / 2)) is 1 / gamma for a query with n = 2 visible keys.
    """
    if isinstance(value, str):
        return str(GAMMA) in value
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() and bool((value == 1 / torch.tensor(GAMMA)).any())
    return isinstance(value, float) and value == GAMMA


def shows_word(token: int) -> Callable[[Any], bool]:
    """Return a test if a text, or token ids, contain the rare word."""

    def shows(value: Any) -> bool:
        if isinstance(value, str):
            return RARE_WORD in value
        if isinstance(value, np.ndarray):
            return value.dtype.kind in "iu" and bool((value == token).any())
        if isinstance(value, torch.Tensor):
            return value.dtype in (torch.int64, torch.int32) and bool((value == token).any())
        return False

    return shows


def write_text(folder: Path) -> None:
    """Write documents of many words, so that the id of the rare word is a large number."""
    rng = random.Random(1)
    words = list(map("".join, itertools.product("bdfg", "aeiou", "klmnprst")))
    for language in ("de", "en"):
        text = ""
        for number, word in enumerate(words):
            text += " ".join([*rng.choices(words, k=5), word])
            if number == 7:
                text += f" {RARE_WORD}"
            text += "\n"
            if number % 4 == 3:
                text += "\n"
        (folder / f"text.{language}").write_text(text, encoding="utf-8")


def make_data(folder: Path, name: str) -> Path:
    """Preprocess the raw text into a new data folder."""
    destination = folder / name
    flags = (
        "-s de -t en --joined-dictionary --tokenizer moses --document-separator blank --workers 1"
    )
    prefixes = ["--trainpref", str(folder / "text"), "--validpref", str(folder / "text")]
    quiet(preprocess.main, [*flags.split(), *prefixes, "--destdir", str(destination)])
    return destination


def train_one_update(data: Path, save_dir: Path | None = None, flags: str = "") -> None:
    """Run one update of the training command."""
    saving = ["--no-save"] if save_dir is None else ["--save-dir", str(save_dir)]
    quiet(train.main, [str(data), *SHAPE.split(), *flags.split(), *saving])


def quiet(main: Callable[[list[str]], int], flags: list[str]) -> None:
    """Run a command without its output."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = main(flags)
    if code:
        raise SystemExit(f"{' '.join(flags)}: {out.getvalue()[-500:]}")


def walk_all(folder: Path) -> dict[str, Walk]:
    """Return the walks by name."""
    write_text(folder)
    documents = "--max-doc-tokens 60"
    data = make_data(folder, "first")
    train_one_update(data, folder / "saved", documents)  # run once, to import all modules
    entries = [line.split()[0] for line in read_lines(data / "dict.de.txt")]
    token = entries.index(RARE_WORD) + 4  # after the special symbols
    walks = {"pair": Walk()}
    with walks["pair"].traced():
        train_one_update(make_data(folder, "second"))
    checkpoint = folder / "saved/checkpoint_last.safetensors"
    translator = Translator.from_checkpoint(checkpoint, "cpu")
    translator.translate(["bak dem"], max_len_b=5)
    walks["line"] = Walk()
    with walks["line"].traced():
        translator.translate(["bak dem"], max_len_b=5)
    walks["gamma"] = Walk(is_gamma)
    with walks["gamma"].traced():
        train_one_update(data)
    walks["document"] = Walk(shows_word(token), until="forward")
    with walks["document"].traced():
        train_one_update(make_data(folder, "third"), flags=documents)
    return walks


def main() -> None:
    """Print a line for each walk."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--list", action="store_true", help="the files, and the names")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        walks = walk_all(Path(folder))
    for name, walk in walks.items():
        names = f", {len(walk.names)} names" if walk.names else ""
        print(f"{name}: {len(walk.files)} files{names}")
        if arguments.list:
            print("  " + "\n  ".join(walk.files))
            if walk.names:
                print("  names: " + ", ".join(walk.names))


if __name__ == "__main__":
    main()
