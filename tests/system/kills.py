"""Kills a training while it saves, again and again. What is left must be whole.

    python -m tests.system.kills --kills 100

Each time a process goes on with the training, which saves after every update. SIGKILL ends it at a
random point of saving: before a random call of a function there, or up to DELAY seconds after it,
so in the middle of writing, too. Then every checkpoint in the folder must be read, and the last one
must not be older than one interval of saving. The next process goes on from there, and in the end
the weights must equal the result of a training that nothing interrupted.
"""

import argparse
import itertools
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import torch

from relu_nmt.training.checkpoint import load_checkpoint, read_metadata
from tests.outputs import assert_same_tensors
from tests.unit.training.toy import Toy, ToyModel, ToyObjective, ToySource

LAST = "checkpoint_last.safetensors"
FIRST_CALLS = 60
CALLS = 2000
"""About as many calls of functions are in writing one file, and in three times saving."""
DELAY = 0.03


class LargeModel(ToyModel):
    """Megabytes of weights, of which little is used."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__(dropout)
        self.table = torch.nn.Parameter(torch.randn(500_000))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs, which a few entries of the table move."""
        return super().forward(inputs) + self.table[:100].mean()


class CountingSource(ToySource):
    """Notes how many updates were begun where a killed process's parent can read it."""

    def __init__(self, begun: mmap.mmap) -> None:
        super().__init__()
        self.begun = begun

    def load(self, index: int) -> object:
        """Return batch ``index``. One is an update."""
        self.begun[:8] = struct.pack("<q", self.count * (self.epoch - 1) + index)
        return super().load(index)


class KilledFolder:
    """Writes checkpoints, until a call of a function there, where SIGKILL ends this process.

    Args:
        write: of the folder.
        killed_at: number of calls of functions before, and seconds after, in which it goes on.
    """

    def __init__(self, write: Callable[..., None], killed_at: tuple[int, float]) -> None:
        self.write = write
        self.calls, self.delay = killed_at

    def __call__(self, *arguments: object) -> None:
        """Write, perhaps not to the end."""
        self.in_file = False
        sys.setprofile(self._count)
        self.write(*arguments)
        sys.setprofile(None)

    def _count(self, _: FrameType, __: str, called: object) -> None:
        self.in_file = self.in_file or getattr(called, "__name__", "") == "serialize_file"
        self.calls -= self.in_file  # before, nothing of it is on the disk
        if self.calls == 0:
            pid = os.getpid()
            if self.delay:
                if os.fork():
                    return
                os.closerange(3, 1024)  # or this one would hold the folder's lock a little longer
            time.sleep(self.delay)
            os.kill(pid, signal.SIGKILL)
            os._exit(0)


def train(
    folder: Path,
    max_update: int,
    begun: mmap.mmap,
    killed_at: tuple[int, float] | None = None,
    interval: int = 1,
) -> None:
    """Train, or go on, in this process.

    Args:
        folder: of the checkpoints.
        max_update: the last update.
        begun: gets the number of updates that were made.
        killed_at: see :class:`KilledFolder`.
        interval: updates between two checkpoints.
    """
    toy = Toy(
        folder,
        run={"max_update": max_update, "preflight": False},
        checkpoint={
            "save_interval_updates": interval,
            "keep_interval_updates": 2,
            "no_epoch_checkpoints": interval > 1,
            "save_dir": folder,
        },
        optimizer={"store_ema": True, "ema_decay": 0.9},
        logging={"log_format": "none"},
        train=CountingSource(begun),
    )
    trainer = toy.trainer(ToyObjective(LargeModel()))
    if killed_at is not None:
        trainer._folder.write = KilledFolder(trainer._folder.write, killed_at)
    with trainer._folder.owned():
        trainer.train()


def child(work: object, *arguments: object) -> int:
    """Start ``work`` in a separate process and return its number."""
    number = os.fork()
    if number == 0:
        code = 1
        try:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
            work(*arguments)
            code = 0
        finally:
            os._exit(code)
    return number


def killed_at_each_file(parent: Path, write: Callable[[Path], None]) -> Iterator[Path]:
    """Yield folders in which ``write`` was killed when the first file appeared, the second...

    In the last folder it came to its end. What appears and goes within microseconds may be missed.

    Args:
        parent: where to make the folders.
        write: writes to a folder, in a separate process.
    """
    for number in itertools.count(1):
        folder = parent / str(number)
        folder.mkdir()
        process = child(write, folder)
        paths = set()
        ended = 0
        while not ended:
            for directory, folders, files in os.walk(folder):
                paths.update(os.path.join(directory, name) for name in (*folders, *files))
            if len(paths) >= number:
                os.kill(process, signal.SIGKILL)
            ended, status = os.waitpid(process, os.WNOHANG)
        assert os.WIFSIGNALED(status) or status == 0, "it failed"
        yield folder
        if status == 0:
            return


def check(folder: Path, begun: int) -> str:
    """See that what a killed process left is whole. Return what was going on."""
    for path in folder.glob("*.safetensors"):
        load_checkpoint(path, with_training_state=True)
    last = folder / LAST
    saved = read_metadata(last)["training_state"]["num_updates"] if last.exists() else 0
    # Update ``begun`` + 1 was under way, so that as many were made, and all but the last are saved.
    assert saved >= begun - 1, f"{begun} updates made, but {saved} saved"
    return "within a file" if any(folder.glob("*.tmp")) else "between two"


def run(folder: Path, kills: int, rng: random.Random) -> dict[str, int]:
    """Kill so often and return how many of the kills came while a checkpoint was written.

    Raises:
        AssertionError: something was lost.
    """
    begun = mmap.mmap(-1, 8)
    counts = {"within a file": 0, "between two": 0}
    parts = folder / "parts"
    num_made = 0
    for done in range(kills):
        if done and done % 5 == 0:
            print(f"{done} kills: {counts}", flush=True)
        delay = rng.choice([0, rng.uniform(0, DELAY)])
        calls = rng.randint(1, rng.choice([FIRST_CALLS, CALLS]))
        number = child(train, parts, 10**6, begun, (calls, delay))
        _, status = os.waitpid(number, 0)
        assert os.WIFSIGNALED(status), "it ended before it was killed"
        [num_made] = struct.unpack("<q", begun[:8])
        counts[check(parts, num_made)] += 1
    for part, interval in (("parts", 1), ("whole", num_made + 3)):
        _, status = os.waitpid(child(train, folder / part, num_made + 3, begun, None, interval), 0)
        assert status == 0, f"{part}: the training failed"
    assert not list(parts.glob("*.tmp")), "what was left half is still there"
    left, right = (
        load_checkpoint(folder / part / LAST, with_training_state=True)
        for part in ("parts", "whole")
    )
    for kind in ("model_tensors", "training_tensors"):
        assert_same_tensors(getattr(left, kind), getattr(right, kind))
    return {**counts, "updates": num_made}


def main() -> None:
    """Kill as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = run(Path(folder), options.kills, random.Random(options.seed))
    print(f"{options.kills} kills, --seed {options.seed}: {counts}; none unreadable, at most one")
    print("interval lost, and in the end bit for bit the weights of an uninterrupted training")


if __name__ == "__main__":
    sys.exit(main())
