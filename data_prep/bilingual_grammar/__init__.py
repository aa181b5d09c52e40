"""A small German-English grammar of our own that writes parallel documents.

``inflection`` holds the agreement tables, ``words`` and ``lexicon`` the words, ``clauses`` the
meaning of a sentence, ``german`` and ``english`` its words in each language, ``story`` a document
in the making, ``narration`` and ``dialogue`` the two kinds of documents. ``documents`` writes a
document by its number.
"""
