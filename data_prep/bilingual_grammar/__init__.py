"""A small German-English grammar of our own that writes parallel documents.

``inflection`` holds the agreement tables, ``words`` and ``lexicon`` the words, ``clauses`` what is
said, ``german`` and ``english`` how each language says it, ``story`` a document in the making,
``narration`` and ``dialogue`` the two kinds of documents, and ``documents`` writes one by number.
"""
