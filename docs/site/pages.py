"""The pages of the site besides docs/: README, examples, commands, presets and the Python API.

A hook of MkDocs, named in mkdocs.yml. It adds these pages to the site, and makes links that leave
the site name a file instead.
"""

import ast
import html
import importlib
import posixpath
import re
import sys
from argparse import SUPPRESS, ArgumentParser
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from relu_nmt.config import flag_of  # noqa: E402
from relu_nmt.jobs.vision_train.settings import RECIPES  # noqa: E402
from relu_nmt.modules.config import ATTENTION_PRESETS  # noqa: E402
from relu_nmt.translation import config as translation  # noqa: E402
from relu_nmt.vision import config as vision  # noqa: E402

log = get_plugin_logger("pages")

API = {
    "Translation": [
        "relu_nmt.Translator",
        "relu_nmt.translation.search.translations",
        "relu_nmt.translation.search.scoring",
    ],
    "Images": [
        "relu_nmt.ImageClassifier",
        "relu_nmt.vision.base",
        "relu_nmt.vision.vision_transformer",
    ],
    "Attention": [
        "relu_nmt.attention",
        "relu_nmt.attention.base",
        "relu_nmt.attention.masks",
        "relu_nmt.attention.pointwise",
        "relu_nmt.attention.normalized",
        "relu_nmt.attention.kernel_features",
        "relu_nmt.attention.records",
    ],
    "Layers": [
        "relu_nmt.modules.config",
        "relu_nmt.modules.multihead",
        "relu_nmt.modules.transformer_layer",
        "relu_nmt.modules.feed_forward",
        "relu_nmt.modules.positions",
        "relu_nmt.modules.objective",
    ],
    "Settings and errors": [
        "relu_nmt.config",
        "relu_nmt.config.registry",
        "relu_nmt.errors",
    ],
}
"""What users import, by page; all public names of a module."""

LINK = re.compile(
    r"```.*?```|(?P<code>`[^`\n]+`)|(?P<image>!?)\[(?P<label>[^\]]*)\]\((?P<target>[^)\s]+)\)",
    re.DOTALL,
)


class Command(NamedTuple):
    """A command, and the function that does its work, as ``module:function``."""

    parser: ArgumentParser
    job: str


@cache
def commands() -> dict[str, Command]:
    """Return the commands that setup.py installs, by name."""
    tree = ast.parse((ROOT / "setup.py").read_text("utf-8"))
    names = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "COMMANDS"
    )
    described_commands = []
    for name in names:
        main = importlib.import_module(f"relu_nmt.cli.{name}").main
        described_commands.append(Command(main.parser(), main.job))
    return {command.parser.prog: command for command in described_commands}


def sources() -> dict[str, str]:
    """Return the pages made of files outside docs/: places in the site and in the repository."""
    readmes = sorted((ROOT / "examples").glob("*/README.md"))
    pages = {f"examples/{file.parent.name}.md": file for file in readmes}
    pages["examples/corpora.md"] = ROOT / "data_prep/README.md"
    pages["index.md"] = ROOT / "README.md"
    return {page: file.relative_to(ROOT).as_posix() for page, file in pages.items()}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the parts of the navigation that are lists of pages of this module."""
    examples = [page for page in sources() if page.startswith("examples/")]
    lists = {
        "Examples": examples,
        "Commands": [f"commands/{name}.md" for name in commands()],
        "Python": [f"api/{slug(title)}.md" for title in [*API, "Jobs"]],
    }
    for part in config.nav:
        for title, pages in lists.items():
            if title in part:
                part[title] += pages
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    texts = {page: (ROOT / file).read_text("utf-8") for page, file in sources().items()}
    texts |= {f"commands/{name}.md": command_page(command) for name, command in commands().items()}
    texts |= {f"api/{slug(title)}.md": api_page(title, names) for title, names in API.items()}
    texts["api/jobs.md"] = jobs_page()
    texts["reference/presets.md"] = presets_page()
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    for name in ("style.css", "worker.js"):
        content = Path(__file__).with_name(name).read_text("utf-8")
        files.append(File.generated(config, f"assets/{name}", content=content))
    return files


SEARCH_BOOSTS = {"guide": 4.0, "lab": 0.25}
"""Factors of a page's rank in search, by folder: answers stand before measurements."""

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
FIGURE = re.compile(r'<img [^>]*src="([^"]+)"[^>]*>')


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Set formulas as MathML, which browsers show without a script. Figures open at full size."""

    def formula(match: re.Match[str]) -> str:
        if match[1] == "span":
            return convert(html.unescape(match[2]), display="inline")
        # Wide formulas scroll in a box of their own.
        return f'<div class="formula">{convert(html.unescape(match[2]), display="block")}</div>'

    content = FORMULA.sub(formula, content)
    return FIGURE.sub(r'<a class="figure" href="\1">\g<0></a>', content)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Take our own worker for pages read as files, not the one that the theme would fetch."""
    theirs = "https://unpkg.com/iframe-worker/shim"
    if theirs not in output:
        log.warning(f"{page.file.src_uri}: the theme no longer asks for {theirs}")
    return output.replace(theirs, relative("assets/worker.js", page.file.src_uri))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to pages of the site, or name the file where it has none. Rank it for search."""
    source = page.file.src_uri
    page.meta["search"] = {"boost": SEARCH_BOOSTS.get(source.partition("/")[0], 1.0)}
    if source.startswith("api/"):
        return markdown
    own_sources = sources()
    path = own_sources.get(source, f"docs/{source}")
    pages = {file: name for name, file in own_sources.items()}
    names = commands()

    def page_at(target: str) -> str | None:
        for file in (target, f"{target}/README.md"):
            if file in pages:
                return pages[file]
        inside = target.removeprefix("docs/")
        return inside if inside != target and files.get_file_from_path(inside) else None

    def replace(match: re.Match[str]) -> str:
        words, target = match[0], match["target"] or ""
        if match["code"]:
            page_of = f"commands/{words.strip('`')}.md"
            is_command = words.strip("`") in names and page_of != source
            return f"[{words}]({relative(page_of, source)})" if is_command else words
        if not target or "://" in target or target.startswith("#"):
            return words
        file, _, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
        if (inside := page_at(file)) is not None:
            to = relative(inside, source) + (f"#{anchor}" if anchor else "")
            return f"{match['image']}[{match['label']}]({to})"
        if not (ROOT / file).exists():
            log.warning(f"{path}: the link to {target} leads nowhere")
        label = match["label"].strip("`").rstrip("/").removeprefix("../")
        return f"`{file}`" if file.endswith(label) else f"{match['label']} (`{file}`)"

    return LINK.sub(replace, markdown)


def relative(page: str, base: str) -> str:
    """Return the way from one page to another."""
    return posixpath.relpath(page, posixpath.dirname(base) or ".")


def slug(title: str) -> str:
    """Return the name of a page's file."""
    return title.lower().replace(" ", "_")


def command_page(command: Command) -> str:
    """Return the page of a command: its description, and every flag by group."""
    parser = command.parser
    job = command.job.replace(":", ".")
    parts = [f"# {parser.prog}", described(str(parser.description))]
    parts.append(f"From Python: [`{job}`](../api/jobs.md#{job}).")
    first = ["positional arguments", "options"]
    groups = sorted(parser._action_groups, key=lambda group: group.title == first[1])
    for group in groups:
        actions = [action for action in group._group_actions if action.help != SUPPRESS]
        if actions:
            head = str(group.title)
            title = {first[0]: "Arguments", first[1]: "Common to all commands"}.get(head, head)
            title = title[0].upper() + title[1:].replace("_", " ")
            parts += [f"## {title}", flags(parser, actions)]
    return "\n\n".join(parts)


def described(text: str) -> str:
    """Return the description of a command as Markdown; what is indented is code."""
    parts = []
    for paragraph in text.strip("\n").split("\n\n"):
        if paragraph.startswith("  "):
            lines = "\n".join(line.removeprefix("  ") for line in paragraph.split("\n"))
            parts.append(f"```\n{lines}\n```")
        else:
            parts.append(f"<p>{marked(paragraph)}</p>")
    return "\n\n".join(parts)


def flags(parser: ArgumentParser, actions: list) -> str:
    """Return a list of flags and what they do, as HTML."""
    formatter = parser._get_formatter()
    lines = ['<dl class="flags">']
    for action in actions:
        name = html.escape(formatter._format_action_invocation(action))
        text = marked((action.help or "") % {**vars(action), "prog": parser.prog})
        lines.append(f"<dt><code>{name}</code></dt><dd>{text}</dd>")
    return "\n".join([*lines, "</dl>"])


def marked(text: str) -> str:
    """Return text of a parser as HTML, flags in it as code."""
    return re.sub(r"(?<![\w-])(--[a-z][\w-]*)", r"<code>\1</code>", html.escape(text, quote=False))


def api_page(title: str, names: list[str]) -> str:
    """Return a page that mkdocstrings fills with the docstrings of these names."""
    return "\n\n".join([f"# {title}", *(f"::: {name}" for name in names)])


def jobs_page() -> str:
    """Return the page of the jobs, each with the command it is behind."""
    parts = [
        "# Jobs",
        "::: relu_nmt.jobs\n    options: {show_root_heading: false, members: []}",
    ]
    for name, command in commands().items():
        parts.append(f"::: {command.job.replace(':', '.')}")
        parts.append(f"Its settings are the flags of [`{name}`](../commands/{name}.md).")
    return "\n\n".join(parts)


PRESETS = {
    "Translation models: `relu-nmt-train --arch`": translation.architectures,
    "Attention: `--attention-preset`": ATTENTION_PRESETS,
    "Image models: `relu-nmt-vision-train --arch`": vision.architectures,
    "Trainings of image models: `--recipe`": RECIPES,
}


def presets_page() -> str:
    """Return the page with the flags that each preset sets."""
    parts = ["# Presets", "Flags that you type go before those of a preset."]
    for title, presets in PRESETS.items():
        rows = ["| name | sets |", "| --- | --- |"]
        for name, values in presets.items():
            flags = (f"`{flag(key, value)}`" for key, value in values.items())
            rows.append(f"| `{name}` | {', '.join(flags) or 'nothing'} |")
        parts += [f"## {title}", "\n".join(rows)]
    return "\n\n".join(parts)


def flag(name: str, value: Any) -> str:
    """Return a setting as one types it."""
    if isinstance(value, bool):
        return flag_of(name) if value else f"--no-{flag_of(name)[2:]}"
    return f"{flag_of(name)} {','.join(map(str, value)) if isinstance(value, tuple) else value}"
