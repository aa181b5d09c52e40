"""Search for the best translation: beam, greedy, sampling."""
