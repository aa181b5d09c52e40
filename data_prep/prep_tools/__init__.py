"""What the corpus scripts share: downloads, archives, cleaning, documents, sentences."""
