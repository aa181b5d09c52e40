"""Train small models with softmax and with ReLU, and draw how they learn and what they attend to.

    python docs/train_and_draw.py [--folder build/figures] [--dry-run] [PART]

PART is one of ``text``, ``images``, ``map`` and ``weights``, by default all.
``text`` trains the tutorial's document model, and one with softmax; it draws the tutorial's map and
those of one document, and prints the table of validation, which ``draw_figures.py`` draws.
``images`` trains two image models on drawn shapes and draws which patches they weigh most.
``map`` trains one with ReLU attention on the same shapes and draws the guide's map of an image.
``weights`` draws the mean weights of softmax and the cube on CIFAR-10, the folder of IMAGES. Each
takes ten minutes.
Steps whose files exist are left out; an interrupted training goes on.
"""

import argparse
import csv
import json
import random
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples/vision_study")]

from docs.draw_figures import GRAY, LAB, TRANSPARENT  # noqa: E402
from relu_nmt import ImageClassifier, Translator  # noqa: E402
from relu_nmt.drawing.figures import STYLE, draw_weights  # noqa: E402

TEXTS = {"softmax": "transformer_tiny", "ReLU": "reluformer_hybrid_tiny"}
IMAGES = {"softmax": "softmax", "SimA": "sima"}
MAPPED = {"ReLU": "reluformer"}
TRAINING = """
    --share-all-embeddings --doc-mixture 1,128 --sentence-separator --document-attention aligned
    --global-layers 1 --max-tokens 2048 --lr 3e-3 --lr-scheduler inverse_sqrt --warmup-updates 200
    --max-update 1000 --validate-interval-updates 100 --log-format json --no-epoch-checkpoints
"""
IMAGE_TRAINING = """
    --arch vit_ti --image-size 64 --patch-size 8 --layers 4 --embed-dim 64 --heads 4
    --batch-size 64 --lr 1e-3 --max-update 1200 --valid-fraction 0.1 --no-epoch-checkpoints
"""
IMAGE_MAP = ROOT / "docs/guide/image_map.svg"
IMAGE_OF_MAP = "shown/disc/0000.png"
TUTORIAL_MAP = ROOT / "docs/guide/tutorial_map.svg"
MAP_TOKENS = range(30, 45)
"""Draw the first document of the test set whose source has about so many tokens."""
MAP_SLOT = "encoder.1"
"""The layer that sees the whole document."""
ROW_EVERY = 40
"""Least number of updates between two rows of the table."""
CLASSES = {"disc": 30, "square": 4, "triangle": 3}
"""Number of corners of each shape."""
LENGTHS = {"cmap": "viridis", "alpha": 0.65, "vmin": 0, "vmax": 1, "interpolation": "none"}
"""Looks of the lengths over an image, the shortest at 0 and the longest at 1."""
NUM_IMAGES, NUM_SHOWN, SIDE = 3000, 6, 64

HEAT_MAPS = {"softmax": "softmax", "polynomial:power=3,scale=fixed": "x³"}
"""Labels of the attentions of polynomials-figure4 in the papers' registry."""

Step = tuple[str, list[str]]
"""A file that shows that the step is done, and its command."""


def python(*words: str) -> list[str]:
    """Return a command of this Python."""
    return [sys.executable, *words]


def text_steps(folder: Path) -> list[Step]:
    """Return the commands that make the corpus and the data, train and write the maps."""
    corpus, data = str(folder / "corpus"), str(folder / "data")
    prefs = [w for p in ("train", "valid", "test") for w in (f"--{p}pref", f"{corpus}/{p}")]
    languages = ["--source-lang", "de", "--target-lang", "en"]
    steps = [
        (
            f"{corpus}/train.de",
            python(
                *("data_prep/grammar_corpus.py", "--out", corpus),
                *("--documents", "800", "--near-copy", "2"),
            ),
        ),
        (
            f"{data}/manifest.json",
            python(
                *("-m", "relu_nmt.cli.preprocess", *languages, *prefs, "--destdir", data),
                *("--joined-dictionary", "--subword", "sentencepiece", "--subword-size", "1000"),
                *("--document-separator", "blank"),
            ),
        ),
    ]
    for name, arch in TEXTS.items():
        saved = str(folder / name)
        train = ["-m", "relu_nmt.cli.train", data, "--arch", arch, "--save-dir", saved]
        flags = [*TRAINING.split(), "--log-file", f"{saved}.log"]
        steps.append((f"{saved}/done", python(*train, *flags)))
        generate = ["-m", "relu_nmt.cli.generate", data, "--path"]
        generate += [f"{saved}/checkpoint_best.safetensors", "--score-reference"]
        generate += ["--max-doc-tokens", "64", "--print-attention", MAP_SLOT]
        steps.append((f"{saved}/generate-test.txt", python(*generate, "--results-path", saved)))
    return steps


def image_steps(folder: Path, attentions: Mapping[str, str]) -> list[Step]:
    """Return the commands that train the image models; :func:`make_shapes` writes the images."""
    steps = []
    for name, attention in attentions.items():
        saved = str(folder / name)
        train = ["-m", "relu_nmt.cli.vision_train", str(folder / "shapes"), "--save-dir", saved]
        train += ["--attention", attention, *IMAGE_TRAINING.split()]
        steps.append((f"{saved}/done", python(*train)))
    return steps


def run_steps(steps: Sequence[Step], dry: bool) -> None:
    """Print the commands, and run those whose file does not exist."""
    for file, command in steps:
        print(shlex.join(["python", *command[1:]]), flush=True)
        if not dry and not Path(file).exists():
            subprocess.run(command, cwd=ROOT, check=True)
            Path(file).touch()


def validation_table(folder: Path) -> str:
    """Return perplexity on the validation set by updates, as a table of Markdown."""
    by_update: dict[int, dict[str, float]] = {}
    for name in TEXTS:
        for line in (folder / f"{name}.log").read_text("utf-8").splitlines():
            if line.startswith("{") and "valid_ppl" in (row := json.loads(line)):
                by_update.setdefault(row["valid_num_updates"], {})[name] = row["valid_ppl"]
    rows, last = [["updates", *TEXTS], ["---"] * (1 + len(TEXTS))], 0
    for update, losses in sorted(by_update.items()):
        if update - last >= ROW_EVERY:  # an epoch's end may follow shortly
            last = update
            rows.append([f"{update:,}", *(f"{losses[name]:.2f}" for name in TEXTS)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def read_maps(file: Path) -> dict[str, dict]:
    """Return the attention maps of a file of relu-nmt-generate by their number."""
    lines = (line for line in file.open(encoding="utf-8") if line.startswith("A-"))
    return {
        number: json.loads(text) for number, _, text in (line.partition("\t") for line in lines)
    }


def draw_maps(figure: Figure, maps: dict[str, dict]) -> None:
    """Draw the mean over heads of each model's map, exact zeros white."""
    for axes, (name, heat_map) in zip(figure.subplots(1, len(maps)), maps.items(), strict=True):
        weights = np.array(heat_map["weights"])  # [H, queries, keys]
        zeros = (weights == 0).mean()
        image = draw_weights(axes, weights.mean(0), darkest=0.5, signed=False)
        axes.set_title(f"{name}: {zeros:.0%} of the weights are zero", loc="left", fontsize=9.5)
        tokens = [token.replace("\u2581", "") or "\u2581" for token in heat_map["keys"]]
        axes.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=6)
        axes.set_yticks(range(len(tokens)), tokens, fontsize=6)
        axes.tick_params(length=1.5, pad=1.5)
        axes.set_xlabel("key")
    figure.axes[0].set_ylabel("query")
    bar = figure.colorbar(image, ax=figure.axes, shrink=0.7, pad=0.01, extend="max")
    bar.set_label("weight, mean over heads; white: exactly 0")


def make_shapes(folder: Path, count: int = NUM_IMAGES, seed: int = 1) -> None:
    """Write images of one shape each on a noisy ground, in a folder for each class."""
    rng = random.Random(seed)
    noise = np.random.default_rng(seed)
    for name, corners in CLASSES.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count // len(CLASSES)):
            ground = noise.normal(rng.uniform(60, 190), 25, (SIDE, SIDE, 1))
            ground = ground + noise.normal(0, 12, (1, 1, 3))
            image = Image.fromarray(ground.clip(0, 255).astype(np.uint8))
            radius = rng.uniform(9, 15)
            center = [rng.uniform(radius, SIDE - radius) for _ in range(2)]
            color = tuple(rng.randrange(256) for _ in range(3))
            draw = ImageDraw.Draw(image)
            draw.regular_polygon((*center, radius), corners, rng.uniform(0, 360), fill=color)
            image.save(folder / name / f"{number:04d}.png")


def draw_saliency(figure: Figure, folder: Path) -> None:
    """Draw images, and over them the length of each patch's query and key in the last block."""
    import pictures  # of examples/vision_study

    maps = {}
    for name in IMAGES:
        data = pictures.PictureSettings(
            checkpoints=(f"{folder / name}/checkpoint_last.safetensors",),
            data=str(folder / "shown"),
            overlays=NUM_SHOWN,
        )
        maps[name], images = pictures.pictures_of(data.checkpoints[0], data)
    rows = [("image", None)]
    rows += [(f"{name}, {kind}", (name, i)) for name in maps for i, kind in enumerate(("q", "k"))]
    grid = figure.subplots(len(rows), NUM_SHOWN)
    for axes_of_row, (label, part) in zip(grid, rows, strict=True):
        for column, axes in enumerate(axes_of_row):
            axes.imshow(images[column], interpolation="none")
            if part is not None:
                sizes = maps[part[0]].lengths[part[1]][column : column + 1]
                mask = pictures.saliency(sizes, images.shape[1:3])[0].numpy()
                axes.imshow(mask, **LENGTHS)
            axes.set_xticks([])
            axes.set_yticks([])
        axes_of_row[0].set_ylabel(label, rotation=0, ha="right", va="center")


def read_heat_maps(file: Path) -> dict[str, np.ndarray]:
    """Return the mean weights [queries, keys] of heads, by their titles, from a table of them."""
    cells: dict[str, dict[tuple[int, int], float]] = {}
    with file.open(encoding="utf-8", newline="") as rows:
        for row in csv.DictReader(rows):
            title = f"{HEAT_MAPS[row['attention']]}, layer {row['layer']}, head {row['head']}"
            pair = int(row["query"]), int(row["key"])
            cells.setdefault(title, {})[pair] = float(row["weight"])
    maps = {}
    for title, cell_weights in cells.items():
        side = 1 + max(query for query, _ in cell_weights)
        maps[title] = np.array([cell_weights[cell] for cell in np.ndindex(side, side)])
        maps[title] = maps[title].reshape(side, side)
    return maps


def draw_heat_maps(figure: Figure, maps: dict[str, np.ndarray]) -> None:
    """Draw mean weights in percent, exact zeros white."""
    for axes, (title, weights) in zip(figure.subplots(1, len(maps)), maps.items(), strict=True):
        weights = 100 * weights
        largest = np.abs(weights).max()
        drawn = draw_weights(axes, weights, largest, bool((weights < 0).any()))
        axes.set_title(title, loc="left", fontsize=8.5)
        axes.set_xlabel("key; colors in %")
        figure.colorbar(drawn, ax=axes, shrink=0.7, pad=0.02)
    figure.axes[0].set_ylabel("query, first the class token")


def save(name: str, size: tuple[float, float], draw: Callable[[Figure], object]) -> None:
    """Write a figure of the laboratory, transparent and without a date."""
    with mpl.rc_context({**STYLE, **TRANSPARENT, "text.color": GRAY}):
        figure = Figure(figsize=size, layout="constrained", dpi=150)
        draw(figure)
        figure.savefig(LAB / f"{name}.svg", transparent=True, metadata={"Date": None})
    print(f"written: {LAB / name}.svg")


def text(folder: Path, dry: bool) -> None:
    """Train the text models, print the table and draw the maps of one document."""
    run_steps(text_steps(folder), dry)
    if dry:
        return
    print(validation_table(folder))
    maps = {name: read_maps(folder / name / "generate-test.txt") for name in TEXTS}
    # Take the same document of both models.
    first, *_ = maps.values()
    index = next(n for n, heat_map in first.items() if len(heat_map["keys"]) in MAP_TOKENS)
    chosen = {name: heat_map[index] for name, heat_map in maps.items()}
    save("attention_of_a_document", (9.5, 4.6), lambda figure: draw_maps(figure, chosen))
    # Draw the tutorial's map by the tutorial's calls, from a model of the tutorial's settings.
    translator = Translator.from_checkpoint(folder / "ReLU" / "checkpoint_best.safetensors")
    tutorial_map = translator.attention("Hast du meinen Brief gesehen?", slot="encoder", layer=-1)
    tutorial_map.save(TUTORIAL_MAP)
    print(f"written: {TUTORIAL_MAP}")


def images(folder: Path, dry: bool) -> None:
    """Draw shapes, train the image models and draw the lengths of queries and keys."""
    train_on_shapes(folder, IMAGES, dry)
    if not dry:
        save("saliency", (7, 5.6), lambda figure: draw_saliency(figure, folder))


def image_map(folder: Path, dry: bool) -> None:
    """Draw shapes, train a model with ReLU attention, and draw a map by the guide's call."""
    train_on_shapes(folder, MAPPED, dry)
    if not dry:
        classifier = ImageClassifier.from_checkpoint(folder / "ReLU/checkpoint_last.safetensors")
        classifier.attention(folder / IMAGE_OF_MAP, layer=1).save(IMAGE_MAP)
        print(f"written: {IMAGE_MAP}")


def train_on_shapes(folder: Path, attentions: Mapping[str, str], dry: bool) -> None:
    """Draw the shapes, unless they exist, and train a model with each attention."""
    if not dry and not (folder / "shown").exists():
        make_shapes(folder / "shapes")
        make_shapes(folder / "shown", NUM_SHOWN, seed=2)
    run_steps(image_steps(folder, attentions), dry)


def weights(folder: Path, dry: bool) -> None:
    """Train softmax and the cube on CIFAR-10 and draw the mean weights of two heads each."""
    run = python("examples/papers.py", "--run", "polynomials-figure4", "--out", str(folder))
    run_steps([(f"{folder}/polynomials-figure4-small.json", run)], dry)
    if not dry:
        maps = read_heat_maps(ROOT / "vision-study" / "maps" / "heat_maps.csv")
        save("heat_maps", (9.5, 2.6), lambda figure: draw_heat_maps(figure, maps))


def main() -> None:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = {"text": text, "images": images, "map": image_map, "weights": weights}
    parser.add_argument("part", nargs="*", choices=[*parts, []], help="all by default")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/figures", metavar="DIR")
    parser.add_argument("--dry-run", action="store_true", help="print the commands only")
    arguments = parser.parse_args()
    for name in arguments.part or parts:
        parts[name](arguments.folder / name, arguments.dry_run)


if __name__ == "__main__":
    main()
