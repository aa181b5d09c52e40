r"""Solve differential equations with PINNsformer: a training for each equation and attention.

    python examples/pinnsformer/run.py --setting small
    python examples/pinnsformer/run.py --setting paper --equations convection \
        --attentions softmax polynomial:scale=dynamic --out pinnsformer

The same command continues a stopped run. Beside the trainings it writes report.md.
"""

import itertools
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pinnsformer import EQUATIONS, PinnsFormer, Points

from relu_nmt.cli.command import Command
from relu_nmt.config import option, settings
from relu_nmt.errors import CheckpointError
from relu_nmt.io.safe_write import safe_writer, write_text

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.paper_registry import published_rows

SETTINGS: dict[str, dict[str, Any]] = {
    "small": {},
    "paper": {"points": 51, "test_points": 101, "steps": 500},
}
ATTENTIONS = ("softmax", *(f"polynomial:scale={scale}" for scale in ("fixed", "dynamic", "none")))
CHECKPOINT = "checkpoint.pt"
RESULTS = "results.json"
FIXED_SETTINGS = ("points", "test_points", "seed", "cross_attention")
"""Settings that a continued training must keep."""


@settings
class RunSettings:
    """The equations, attentions and sizes of the trainings."""

    setting: str = option(
        "small", "sizes to begin with. Other flags win", presets=SETTINGS, metavar="NAME"
    )
    equations: tuple[str, ...] = option(
        tuple(EQUATIONS), "equations to solve", choices=tuple(EQUATIONS), several=True
    )
    attentions: tuple[str, ...] = option(
        ATTENTIONS,
        "attentions of the encoder, NAME or NAME:option=value",
        several=True,
        metavar="NAME",
    )
    cross_attention: str | None = option(
        None, "attention of the decoder to the encoder (default: the encoder's)", metavar="NAME"
    )
    points: int = option(21, "training points along each axis", least=2)
    test_points: int = option(51, "test points along each axis", least=2)
    steps: int = option(30, "steps of L-BFGS, of up to 20 iterations each", least=1)
    seed: int = option(1, "draws the weights")
    double: bool = option(
        False,
        "compute in float64, in twice the time. A training can also go on in float64 where "
        "float32's rounding keeps the line search from a lower loss",
    )
    cpu: bool = option(False, "use the CPU even if there is a GPU")
    threads: int = option(1, "CPU threads", least=1)
    save_interval: int = option(10, "save every N steps", least=1)
    dry_run: bool = option(False, "print the folders of the trainings, and train none")
    out: str = option("pinnsformer", "folder of the trainings and of the report", metavar="DIR")


def folder_of(settings: RunSettings, equation: str, attention: str) -> Path:
    """Return the folder of a training."""
    return Path(settings.out) / equation / attention.translate(str.maketrans(":=,", "---"))


class EquationTraining:
    """One training by L-BFGS with a strong Wolfe line search on all points at once.

    Args:
        settings: settings of all trainings.
        equation: name of the equation.
        attention: attention of the encoder.

    Raises:
        ConfigError: an attention cannot work here.
        CheckpointError: the folder's checkpoint is damaged, or has other settings.
    """

    def __init__(self, settings: RunSettings, equation: str, attention: str) -> None:
        self.settings = settings
        self.folder = folder_of(settings, equation, attention)
        self.device = "cpu" if settings.cpu or not torch.cuda.is_available() else "cuda"
        torch.manual_seed(settings.seed)
        dtype = torch.float64 if settings.double else torch.float32
        model = PinnsFormer(attention, settings.cross_attention or attention)
        self.model = model.to(self.device, dtype)
        self.points = Points(EQUATIONS[equation], settings.points, self.device, dtype)
        self.test_points = Points(EQUATIONS[equation], settings.test_points, self.device, dtype)
        self.optimizer = torch.optim.LBFGS(self.model.parameters(), line_search_fn="strong_wolfe")
        self.results: dict[str, Any] = {
            "equation": equation,
            "attention": attention,
            **{name: getattr(settings, name) for name in FIXED_SETTINGS},
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "steps": 0,
            "seconds": 0.0,
            "diverged": False,
            "course": [],
        }
        self._restore()

    def run(self) -> None:
        """Train to the last step, and write the results at each checkpoint."""
        if self.results["steps"]:
            print(f"{self.folder}: go on from step {self.results['steps']}", flush=True)
        while self.results["steps"] < self.settings.steps and not self.results["diverged"]:
            started = time.monotonic()
            self.optimizer.step(self._closure)
            losses = {name: loss.item() for name, loss in self.points.losses(self.model).items()}
            total = sum(losses.values())
            self.results["steps"] += 1
            step = self.results["steps"]
            self.results["seconds"] += time.monotonic() - started
            self.results["diverged"] = not math.isfinite(total)
            self.results["course"].append({"step": step, "loss": total, **losses})
            print(f"{self.folder}: step {step}: loss {total:.3e}", flush=True)
            if step % self.settings.save_interval == 0:
                self._save()
        self._save()

    def _closure(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        losses = self.points.losses(self.model)
        loss = torch.stack(list(losses.values())).sum()
        loss.backward()
        return loss

    def _save(self) -> None:
        """Write the checkpoint, then the results with the present errors."""
        self.folder.mkdir(parents=True, exist_ok=True)
        course = self.results["course"]
        last = course[-1]["loss"] if course else None
        errors = self.test_points.errors(self.model)
        self.results |= {"double": self.settings.double, "loss": last, **errors}
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        with safe_writer(self.folder / CHECKPOINT) as file:
            torch.save({**state, "results": self.results}, file)
        text = json.dumps(finite(self.results), indent=1, allow_nan=False)
        write_text(self.folder / RESULTS, text + "\n")

    def _restore(self) -> None:
        path = self.folder / CHECKPOINT
        if not path.exists():
            return
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
            results = state["results"]
            for name in FIXED_SETTINGS:
                if results[name] != self.results[name]:
                    raise CheckpointError(
                        f"{path}: made with {name} {results[name]}, not {self.results[name]}; "
                        "choose another --out"
                    )
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.results = results
        except CheckpointError:
            raise
        except Exception as error:  # a damaged file may raise any exception
            [reason, *_] = str(error).splitlines() or [type(error).__name__]
            raise CheckpointError(f"{path}: damaged ({reason}); remove it") from error


def finite(value: Any) -> Any:
    """Return a JSON value with None in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {name: finite(element) for name, element in value.items()}
    if isinstance(value, list):
        return [finite(element) for element in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def published() -> dict[str, dict[str, tuple[float, ...]]]:
    """Return published loss, rMAE and rMSE by equation and attention.

    Reference: Saratchandran et al. 2024, "Rethinking Attention", appendix A.2.5.
    """
    numbers: dict[str, dict[str, tuple[float, ...]]] = {}
    for equation in EQUATIONS:
        numbers[equation] = {}
        for attention, row in published_rows(f"polynomials-pinn-{equation}").items():
            numbers[equation][attention] = tuple(map(float, row))
    return numbers


def report(out: Path) -> str:
    """Return a table of all trainings in a folder, beside the published numbers.

    The published numbers are for one attention in encoder and decoder.
    """
    counts = ("points", "seed", "steps")
    errors = ("loss", "rMAE", "rMSE")
    columns = ["encoder", "decoder", *counts, "seconds", *errors, "published loss", *errors[1:]]
    parts = []
    for equation in EQUATIONS:
        rows = []
        for path in sorted((out / equation).glob(f"*/{RESULTS}")):
            results = json.loads(path.read_text("utf-8"))
            encoder = results["attention"]
            decoder = results["cross_attention"] or encoder
            published_errors: Sequence[float | None] = (None, None, None)
            if decoder == encoder:
                published_errors = published()[equation].get(encoder, published_errors)
            row = [f"`{encoder}` (diverged)" if results["diverged"] else f"`{encoder}`"]
            row.append(f"`{decoder}`")
            row += [f"{results[name]}" for name in counts]
            row.append(f"{results['seconds']:.0f}")
            for number in (*(results[name] for name in errors), *published_errors):
                row.append("-" if number is None else f"{number:.1e}")
            rows.append(row)
        if rows:
            lines = [f"## {equation}\n"]
            for cells in (columns, ["---"] * len(columns), *rows):
                lines.append(f"| {' | '.join(cells)} |")
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def run(settings: RunSettings) -> None:
    """Run all trainings one after the other, and write the report after each.

    Raises:
        ConfigError: an attention cannot work here.
        CheckpointError: a checkpoint is damaged, or has other settings.
    """
    torch.set_num_threads(settings.threads)
    pairs = list(itertools.product(settings.equations, settings.attentions))
    if settings.dry_run:
        for equation, attention in pairs:
            folder = folder_of(settings, equation, attention)
            print(f"{folder}: {equation}, {attention}, {settings.steps} steps")
        return
    for equation, attention in pairs:  # check all before the first training
        EquationTraining(settings, equation, attention)
    for equation, attention in pairs:
        EquationTraining(settings, equation, attention).run()
        text = report(Path(settings.out))
        write_text(Path(settings.out) / "report.md", text)
    print(text)


main = Command("pinnsformer", __doc__, RunSettings, run)

if __name__ == "__main__":
    sys.exit(main())
