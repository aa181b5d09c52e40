"""The documents of the corpus: narrations and dialogues, numbered."""

import random

from bilingual_grammar.dialogue import Dialogue
from bilingual_grammar.narration import Narrator
from bilingual_grammar.story import Story, StoryDocument


def write_document(seed: int, number: int) -> StoryDocument:
    """Return document ``number`` of the corpus that ``seed`` gives.

    Args:
        seed: of the whole corpus.
        number: of the document. The same seed and number give the same document, whatever else
            is written.

    Example:
        >>> write_document(1, 7) == write_document(1, 7)
        True
    """
    # A string seeds the generator through SHA-512, the same on every platform and version.
    lots = random.Random(f"{seed}/{number}")
    story = Story(lots)
    if lots.random() < 0.4:
        Dialogue(story).talk(lots.randint(2, 5))
    else:
        Narrator(story).tell(num_things=lots.randint(1, 4), sentences=6)
    return story.document()
