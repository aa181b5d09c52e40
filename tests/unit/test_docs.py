"""README.md and docs/ say and draw of the code only what is true."""

import ast
import importlib
import itertools
import re
from pathlib import Path

import pytest
import torch

from docs import draw_figures, draw_layers
from relu_nmt.attention import attentions
from relu_nmt.attention.base import build_attention
from relu_nmt.attention.kernels import tuned
from relu_nmt.config import from_flat
from relu_nmt.config.registry import Spec
from relu_nmt.jobs.vision_train.settings import RECIPES
from relu_nmt.vision.base import build_vision_model
from relu_nmt.vision.config import VisionTransformerConfig, architectures
from tests.chromium import PROGRAM, Chromium
from tests.markdown import cells, code_blocks
from tests.tiny import num_parameters

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/reference/attention.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
CAPABILITIES = {
    "causal": "causal",
    "cross": "cross",
    "bounded length": "fixed_length",
    "weights": "weights",
    "regularizer": "non_negative",
    "any key order": "permutation_invariant",
    "second derivatives": "double_backward",
}


@pytest.mark.parametrize("folder", ["docs", "examples", "benchmarks", "data_prep"])
def test_scripts_import_names_that_the_package_has(folder):
    """The tests run no code of the documentation's site, which needs MkDocs."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("relu_nmt"):
                module = importlib.import_module(node.module)
                for alias in node.names:
                    if not hasattr(module, alias.name):
                        importlib.import_module(f"{node.module}.{alias.name}")


def built_in_names():
    # Other tests register attentions of their own.
    return [n for n in attentions.names() if attentions.get(n).__module__.startswith("relu_nmt.")]


def table_under(text: str, header: str) -> dict[str, dict[str, str]]:
    """Return the rows of the table whose header begins so, by the name in their first cell."""
    lines = iter(text.splitlines())
    columns = next(cells(line) for line in lines if line.startswith(header))
    rows = {}
    for line in lines:
        if not line.startswith("|"):
            return rows
        row = cells(line)
        if row[0].startswith("`"):
            name = row[0].strip("`")
            assert name not in rows, f"{name} has two rows"
            assert len(row) == len(columns), line
            rows[name] = dict(zip(columns, row, strict=True))
    return rows


def test_the_table_of_vision_models_has_every_shape_and_its_true_size():
    text = (ROOT / "docs/reference/vision.md").read_text("utf-8")
    lines = [line for line in text.splitlines() if re.match(r"\| `\w+_", line)]
    named = set()
    for line in lines:
        first, width, _, _, _, size = cells(line)
        names = re.findall(r"`(\w+)`", first)
        assert len({str(architectures[name]) for name in names}) == 1, line
        named.update(names)
        config = VisionTransformerConfig.of(**architectures[names[0]])
        with torch.device("meta"):
            model = build_vision_model(config, 1000)
        assert num_parameters(model) == int(size.replace(",", "")), line
        assert config.embed_dim == int(width.split()[0]), line  # of the first stage
    assert named == set(architectures)


def test_the_example_of_vision_models_runs():
    text = (ROOT / "docs/reference/vision.md").read_text("utf-8")
    [block] = code_blocks(text, "python")
    names = {}
    exec(block.text, names)
    assert names["output"].logits.shape == (2, 10)
    assert names["output"].intermediate[1].shape == (2, 192, 7, 12)


@pytest.mark.parametrize("header", ["| name | weights w_ij", "| name | causal"])
def test_the_guide_has_a_row_for_each_registered_attention(header):
    assert sorted(table_under(GUIDE, header)) == built_in_names()


def test_the_guide_to_choosing_lists_each_registered_attention():
    text = (ROOT / "docs/guide/attention.md").read_text("utf-8")
    listed = " ".join(re.findall(r"^\| `.*", text, re.MULTILINE))
    assert not [name for name in built_in_names() if f"`{name}`" not in listed]


def test_the_readme_is_short_and_names_every_command_and_file_that_it_points_to():
    assert len(README.splitlines()) <= 150
    setup = (ROOT / "setup.py").read_text("utf-8")
    commands = re.search(r"COMMANDS = \[(.*?)\]", setup, re.DOTALL)
    assert commands is not None
    for name in re.findall(r'"(\w+)"', commands[1]):
        assert f"`relu-nmt-{name.replace('_', '-')}`" in README
    section = README.partition("## Read these files first")[2].partition("##")[0]
    files = re.findall(r"`([\w/]+\.py)`", section)
    assert files and all((ROOT / "relu_nmt" / file).exists() for file in files)


def test_the_own_attention_of_guide_and_tutorial_is_the_same():
    own_attentions = []
    for name in ("tutorial", "own_attention"):
        page = (ROOT / f"docs/guide/{name}.md").read_text("utf-8")
        blocks = code_blocks(page, "python")
        own_attentions.append([block.text for block in blocks if block.file == "mine.py"])
    first, second = own_attentions
    assert first == second and len(first) == 1


def test_the_marks_are_the_capabilities():
    for name, row in table_under(GUIDE, "| name | causal").items():
        able = attentions.get(name).capabilities
        for column, field in CAPABILITIES.items():
            assert row[column] == ("yes" if getattr(able, field) else "no"), (name, column)


def test_the_options_that_change_a_mark_do():
    rows = table_under(GUIDE, "| spec | regularizer")
    assert rows
    for spec, row in rows.items():
        attention = build_attention(Spec.parse(spec), "encoder", 0, 1, 4, dropout=0.0)
        mark = attention.capabilities.non_negative
        assert row["regularizer"] == ("yes" if mark else "no"), spec


def test_the_options_and_defaults_are_those_of_the_settings():
    for name, row in table_under(GUIDE, "| name | weights w_ij").items():
        config = attentions.get(name).Config
        stated = dict(o.partition("=")[::2] for o in re.findall("`(.*?)`", list(row.values())[2]))
        fields = set(config.__dataclass_fields__)
        if not config().qk_norm:  # every mechanism's option, which the guide tells once
            fields.remove("qk_norm")
        assert stated.keys() == fields, name
        assert from_flat(config, {k: v for k, v in stated.items() if v}) == config(), name


def test_the_limits_of_auto_are_those_of_the_code():
    assert f"fewer than {tuned.CPU_LEAST_LENGTH} queries or keys on a CPU" in GUIDE
    assert f"or {tuned.GPU_LEAST_PAIRS:,} pairs of both on a GPU" in GUIDE
    assert f"fewer than {tuned.CPU_HALF_FUSED_LENGTH} keys" in GUIDE


def test_the_code_of_the_guide_runs(monkeypatch, capsys):
    # Parts that it registers are forgotten afterwards.
    monkeypatch.setattr(attentions, "_entries", dict(attentions._entries))
    namespace: dict = {"__name__": __name__}
    for block in code_blocks(GUIDE, "python"):
        exec(block.text, namespace)
    assert "torch.Size([1, 4, 10, 16])" in capsys.readouterr().out
    warm = build_attention(Spec.parse("warm_softmax"), "cross", 0, 2, 4, dropout=0.0)
    assert warm.config.temperature == 2.0


def test_the_picture_of_the_layers_is_drawn_from_their_rules():
    again = "run python docs/draw_layers.py"
    assert draw_layers.PICTURE.read_text("utf-8") == draw_layers.picture(), again
    assert all(f">{part}<" in draw_layers.picture() for part in ("attention", "training", "cli"))


def test_the_figures_are_drawn_from_the_tables():
    scores = draw_figures.bleu_by_length()
    assert scores["sinusoidal+rotary+t5"]["softmax"][-1] == 42.47
    assert list(map(len, itertools.chain(*map(dict.values, scores.values())))) == [5] * 6
    speed = draw_figures.speeds()["decoding documents of 1,024 tokens"]
    assert speed["relu_nmt, softmax"] == 471 and speed["ctranslate2"] == 115
    curves = draw_figures.learning_curves()
    assert curves["ViT"]["relu/L, normed q, k"][-1] == 41.5 and curves["XCiT"]["updates"][0] == 200
    assert draw_figures.perplexities()["ReLU"][-1] < 1.1
    for name, labels in (
        ("bleu_by_length", [f"--positions {positions}" for positions in scores]),
        ("speed_beside_peers", speed),
        ("attention_by_length", draw_figures.attention_costs()),
        ("training_by_length", draw_figures.training_costs()),
        ("learning_curves", [f"{name}, CIFAR-10: accuracy, %" for name in curves]),
    ):
        drawn = (draw_figures.LAB / f"{name}.svg").read_text("utf-8")
        assert all(f">{label}<" in drawn for label in labels), "run python docs/draw_figures.py"


@pytest.mark.parametrize(
    "path",
    ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))],
)
def test_links_lead_somewhere(path):
    text = re.sub("<!--.*?-->", "", (ROOT / path).read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        if "://" in target:
            continue
        target_path = (ROOT / path).parent / file if file else ROOT / path
        assert target_path.exists(), target
        if anchor:
            assert anchor in anchors_of(target_path.read_text("utf-8")), target


def anchors_of(text: str) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_guide_to_images_tells_what_the_recipes_set():
    lines = (ROOT / "docs/reference/images.md").read_text("utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| | `deit`"))
    names = [name.strip("`") for name in cells(lines[start])[1:]]
    assert names == [name for name in RECIPES if name != "none"]
    rows = {row[0]: row[1:] for row in map(cells, lines[start + 2 : start + 16])}
    for index, name in enumerate(names):
        recipe = RECIPES[name]
        assert int(rows["epochs"][index]) == recipe["max_epoch"]
        assert float(rows["weight decay"][index]) == recipe["weight_decay"]
        assert float(rows["clipping"][index] or 0) == recipe.get("clip_norm", 0)
        assert float(rows["erasing"][index] or 0) == recipe.get("random_erasing", 0)
        assert int(rows["views of an image"][index]) == recipe.get("repeated_augmentation", 1)
        mixes = [float(part or 0) for part in rows["mixup / cutmix"][index].split("/")]
        assert (mixes * 2)[:2] == [recipe.get("mixup", 0), recipe.get("cutmix", 0)]
        magnitude = float(rows["RandAugment"][index].split()[2].rstrip(","))
        assert magnitude == recipe["rand_augment_magnitude"]
        share = rows["validation keeps"][index]
        if share or "eval_crop_ratio" in recipe:
            assert float(share) == recipe["eval_crop_ratio"]


@pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")
def test_the_search_of_the_site_has_a_worker_in_pages_read_as_files(tmp_path):
    (tmp_path / "profile").mkdir()
    script = (ROOT / "docs/site/worker.js").read_text("utf-8")
    (tmp_path / "index.html").write_text(f"<body><script>{script}</script></body>")
    (tmp_path / "part.js").write_text("const part = 40;")
    (tmp_path / "sum.js").write_text("""addEventListener("message", async ({ data }) => {
        await importScripts("part.js");
        postMessage(part + data);
    });""")
    with Chromium(tmp_path / "profile") as browser:
        browser.open((tmp_path / "index.html").as_uri())
        browser.run("""(() => {
            const worker = new Worker("sum.js");
            worker.addEventListener("message", ({ data }) => { window.answer = data; });
            worker.postMessage(2);
        })()""")
        browser.until("window.answer === 42", seconds=20)
        assert browser.complaints() == []
