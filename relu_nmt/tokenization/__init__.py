"""From raw text to subword tokens and back."""
