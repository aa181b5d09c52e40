"""Draw files.png, a web page and its translation, for the page "Translate files".

    python docs/draw_files.py CHECKPOINT

The model translates German captions into English (examples/multi30k). Chromium shows both pages.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.chromium import Chromium  # noqa: E402

PICTURE = ROOT / "docs/guide/files.png"
SIZE = 420, 320
PAGE = """<!DOCTYPE html>
<html lang="de"><head><meta charset="utf-8"><title>kinder in einem park</title><style>
body { font: 16px/1.5 sans-serif; margin: 20px; color: #223; background: #fff }
a { color: #0645ad } b { background: #ffe9a8 } i { color: #a02828 }
td { border: 1px solid #99a; padding: 2px 8px }
h1 { font-size: 22px }
</style></head><body>
<h1>kinder in einem park</h1>
<p>ein <b>kleines mädchen</b> in einem <i>roten kleid</i> sitzt auf einer
<a href="https://example.org/park">bank in einem park</a>.</p>
<ul>
<li>zwei männer spielen <b>gitarre</b> auf der straße.</li>
<li>ein <i>brauner hund</i> läuft mit einem <b>blauen ball</b> durch das gras.</li>
</ul>
<table><tr><td>eine frau steht vor <a href="https://example.org/1">einem haus</a>.</td>
<td>ein alter mann liest <i>eine zeitung</i>.</td></tr></table>
</body></html>
"""


def main() -> None:
    """Translate the page, and draw both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    checkpoint = parser.parse_args().checkpoint
    with TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        page.write_text(PAGE, "utf-8")
        translation = page.with_name("page.en.html")
        command = [sys.executable, "-m", "relu_nmt.cli.translate_document", str(page)]
        command += ["--path", checkpoint, "--output", str(translation), "--beam", "4"]
        subprocess.run(command, check=True)
        width, height = SIZE
        both = Image.new("RGB", (2 * width + 2, height), "#99a")
        with Chromium(Path(folder, "profile"), width, height) as browser:
            for number, side in enumerate((page, translation)):
                browser.open(side.as_uri())
                picture = Path(folder, f"{number}.png")
                browser.picture(picture)
                both.paste(Image.open(picture), (number * (width + 2), 0))
        both.quantize(64).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
