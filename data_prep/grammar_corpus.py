#!/usr/bin/env python3
"""Write the embedded corpus: German-English documents from a small grammar of our own.

It needs nothing but Python, and gives the same text for the same seed everywhere. It serves for
tests, where no corpus can be downloaded, and for checks of a model's use of context: articles and
adjectives agree, the German verb stands second or last, pronouns and forms of address depend on
earlier sentences.

    python data_prep/grammar_corpus.py --out corpus/ --documents 4000 --seed 1

writes train, valid and test (``train.de``, ``train.en``, ...), the contrasts
``valid.contrasts.jsonl`` and ``test.contrasts.jsonl``, and ``corpus.json``. A contrast has a
sentence that needs an earlier one, the earlier sentence, and wrong translations. Without the
earlier sentence a translation is a guess: of "it" (er, sie, es), of "you" (du, Sie), and of German
"er" and "sie", which mean a person as often as a thing where both fit. Lines that training has seen
word for word are removed from valid and test (``--near-copy 2`` keeps them, and documents whole).
Contrasts keep their whole documents.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from bilingual_grammar.documents import write_document
from bilingual_grammar.story import StoryDocument
from prep_tools import documents as docs
from prep_tools.command import PrepError, run_script, say, script_parser

from relu_nmt.io.text_lines import write_lines

LANGUAGES = ("de", "en")


def contrasts_of(name: str, story: StoryDocument) -> Iterator[dict[str, object]]:
    """Yield a record for every sentence of the document that needs an earlier one."""
    for reference in story.references:
        source_side = LANGUAGES.index(reference.source_language)
        pair = story.pairs[reference.sentence]
        yield {
            "document": name,
            "sentence": reference.sentence,
            "antecedent": reference.antecedent,
            "distance": reference.distance,
            "phenomenon": reference.phenomenon,
            "source_language": reference.source_language,
            "source": pair[source_side],
            "reference": pair[1 - source_side],
            "contrasts": list(reference.contrasts),
            "source_context": [p[source_side] for p in story.pairs[: reference.sentence]],
            "reference_context": [p[1 - source_side] for p in story.pairs[: reference.sentence]],
        }


def write_contrasts(
    folder: Path, split: str, documents: list[docs.Document], stories: dict[str, StoryDocument]
) -> int:
    """Write the records of some documents, one JSON object a line, and return their number."""
    records = []
    for document in documents:
        for record in contrasts_of(document.name, stories[document.name]):
            records.append(json.dumps(record, ensure_ascii=False))
    write_lines(folder / f"{split}.contrasts.jsonl", records)
    return len(records)


def make_corpus(arguments: argparse.Namespace) -> None:
    """Write the documents, divide them, and write the files."""
    if arguments.documents < 20:
        raise PrepError(f"--documents {arguments.documents}: at least 20 are needed to divide them")
    stories = {}
    for number in range(arguments.documents):
        stories[f"{arguments.seed}/{number}"] = write_document(arguments.seed, number)
        if (number + 1) % 1000 == 0:
            say(f"  {number + 1:,} of {arguments.documents:,} documents")
    documents = [docs.Document(name, story.pairs) for name, story in stories.items()]
    corpus = docs.divide(documents, arguments.held_out, arguments.near_copy)
    docs.write_corpus(corpus, arguments.out, LANGUAGES, arguments.document_separator)
    contrasts = {}
    for split in ("valid", "test"):
        documents = getattr(corpus, split)
        contrasts[split] = write_contrasts(arguments.out, split, documents, stories)
    facts = {
        "source": "embedded German-English grammar",
        "license": "MIT",
        "seed": arguments.seed,
        "contrasts": contrasts,
        "near copies removed": corpus.removed,
    }
    docs.report_corpus(corpus, arguments.out, facts)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    parser = script_parser("grammar_corpus.py", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the corpus")
    parser.add_argument(
        "--documents", type=int, default=4000, help="number of documents (default: 4000)"
    )
    # Short sentences recur by nature here. Only word for word do they count as seen.
    docs.add_division_options(parser, near_copy=1.0)
    docs.add_separator_option(parser)
    return parser


if __name__ == "__main__":
    sys.exit(run_script(make_parser(), make_corpus))
