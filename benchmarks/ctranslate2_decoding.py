"""Translate a file by CTranslate2; benchmarks/run.py calls it in that toolkit's environment.

    ctranslate2_decoding.py MODEL SOURCE OUTPUT TYPE DEVICE WORKERS THREADS BATCH BEAM TOKENS MOST

TYPE is float32 or int8; each of the WORKERS has so many THREADS. Every translation has TOKENS
tokens, or, where that is 0, as many as the model likes, at most MOST. Nothing but the standard
library and CTranslate2 is needed.
"""

import sys
import time

import ctranslate2


def main() -> None:
    """Translate, write the translations and print how long the search took."""
    model, source, output, compute_type, device = sys.argv[1:6]
    workers, threads, batch_size, beam, tokens, most_tokens = map(int, sys.argv[6:])
    translator = ctranslate2.Translator(
        model,
        device=device,
        compute_type=compute_type,
        inter_threads=workers,
        intra_threads=threads,
    )
    with open(source, encoding="utf-8") as file:
        sentences = [line.split() for line in file]
    started = time.perf_counter()
    results = translator.translate_batch(
        sentences,
        beam_size=beam,
        max_batch_size=batch_size,
        max_input_length=0,
        min_decoding_length=tokens or 1,
        max_decoding_length=tokens or most_tokens,
    )
    seconds = time.perf_counter() - started
    found = [result.hypotheses[0] for result in results]
    with open(output, "w", encoding="utf-8") as file:
        file.writelines(" ".join(words) + "\n" for words in found)
    total = sum(map(len, found))
    print(f"Translated {len(found)} sentences ({total} tokens) in {seconds:.3f}s")


if __name__ == "__main__":
    main()
