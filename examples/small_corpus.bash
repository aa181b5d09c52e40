# A small German-English corpus of documents for the examples that source this file, with the
# settings PYTHON and CORPUS. Their working directory is the root of the repository.

# Install into .venv if PYTHON is missing, and make FOLDER/corpus and FOLDER/data-bin unless they exist.
# Hold out 40 documents each for validation and test, which is translated often.
small_corpus() {
    local out=$1 corpus=$1/corpus
    command -v "$PYTHON" >/dev/null || make .venv/.installed
    [ ! -e "$out/data-bin/manifest.json" ] || return 0
    if [ ! -e "$corpus/corpus.json" ]; then
        local fetch=("$PYTHON" data_prep/libreoffice_help.py --lang de --scratch "$out/packages")
        local write=("$PYTHON" data_prep/grammar_corpus.py)
        local held_out=(--out "$corpus" --held-out 40)
        case $CORPUS in
        libreoffice) "${fetch[@]}" "${held_out[@]}" ;;
        grammar) "${write[@]}" "${held_out[@]}" ;;
        *) "${fetch[@]}" "${held_out[@]}" || {
            echo "The LibreOffice help cannot be had here; going on with documents of our own grammar."
            "${write[@]}" "${held_out[@]}"
        } ;;
        esac
    fi
    "$PYTHON" -m relu_nmt.cli.preprocess \
        --source-lang de --target-lang en --document-separator blank \
        --trainpref "$corpus/train" --validpref "$corpus/valid" --testpref "$corpus/test" \
        --destdir "$out/data-bin" --joined-dictionary --subword sentencepiece --subword-size 4000
}

# Print --bf16 where it is faster: on GPUs, and on CPUs with instructions for it.
fast_precision() {
    if grep -qwE 'avx512_bf16|amx_bf16' /proc/cpuinfo 2>/dev/null; then echo --bf16; fi
}
