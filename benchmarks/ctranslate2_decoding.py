"""Translate a file by CTranslate2. benchmarks/run.py calls it in that toolkit's environment.

Every translation has TOKENS tokens. With 0 the model decides, up to MOST. The script needs only the
standard library and CTranslate2.
"""

import argparse
import time


def main() -> None:
    """Translate, write the translations and print how long the search took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("model", "source", "output"):
        parser.add_argument(name, metavar=name.upper())
    parser.add_argument("type", metavar="TYPE", choices=("float32", "int8"))
    parser.add_argument("device", metavar="DEVICE")
    for name in ("workers", "threads", "batch", "beam", "tokens", "most"):
        parser.add_argument(name, metavar=name.upper(), type=int)
    given = parser.parse_args()
    import ctranslate2  # imported here, as --help does not need it

    translator = ctranslate2.Translator(
        given.model,
        device=given.device,
        compute_type=given.type,
        inter_threads=given.workers,
        intra_threads=given.threads,
    )
    with open(given.source, encoding="utf-8", newline="\n") as file:
        sentences = [line.split() for line in file]
    started = time.perf_counter()
    results = translator.translate_batch(
        sentences,
        beam_size=given.beam,
        max_batch_size=given.batch,
        max_input_length=0,
        min_decoding_length=given.tokens or 1,
        max_decoding_length=given.tokens or given.most,
    )
    seconds = time.perf_counter() - started
    found = [result.hypotheses[0] for result in results]
    with open(given.output, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(" ".join(words) + "\n" for words in found)
    total = sum(map(len, found))
    print(f"Translated {len(found)} sentences ({total} tokens) in {seconds:.3f}s")


if __name__ == "__main__":
    main()
