"""Translate a file by CTranslate2, called by benchmarks/run.py in that toolkit's environment.

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
    arguments = parser.parse_args()
    import ctranslate2  # imported here, as --help does not need it

    translator = ctranslate2.Translator(
        arguments.model,
        device=arguments.device,
        compute_type=arguments.type,
        inter_threads=arguments.workers,
        intra_threads=arguments.threads,
    )
    with open(arguments.source, encoding="utf-8", newline="\n") as file:
        sentences = [line.split() for line in file]
    started = time.perf_counter()
    results = translator.translate_batch(
        sentences,
        beam_size=arguments.beam,
        max_batch_size=arguments.batch,
        max_input_length=0,
        min_decoding_length=arguments.tokens or 1,
        max_decoding_length=arguments.tokens or arguments.most,
    )
    seconds = time.perf_counter() - started
    translations = [result.hypotheses[0] for result in results]
    with open(arguments.output, "w", encoding="utf-8", newline="\n") as file:
        for tokens in translations:
            file.write(" ".join(tokens) + "\n")
    total = sum(map(len, translations))
    print(f"Translated {len(translations)} sentences ({total} tokens) in {seconds:.3f}s")


if __name__ == "__main__":
    main()
