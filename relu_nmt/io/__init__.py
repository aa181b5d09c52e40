"""Files, memory and long work: safe writing, lines of text, worker processes, progress bars."""
