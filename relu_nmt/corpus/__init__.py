"""Raw text to a binarised corpus of a language pair, and back to text."""
