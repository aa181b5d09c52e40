# Answer --help and --dry-run for the scripts that source this file before anything else.
# --help prints their first comment, with "usage:" before each example, and the lines that read
# settings, with the defaults. --dry-run, or DRY_RUN=1, makes them print commands in place of running
# them, so that nothing is fetched, trained or written.
case " $* " in
*" --help "* | *" -h "*)
    sed -nE '1d; /^#/!q; s/^#   +/usage: /; s/^# ?//; p' "$0"
    sed -nE 's/^ *(export )?([A-Z_]+=\$\{)/  \2/p' "$0"
    echo "  --dry-run prints the commands and runs none"
    exit
    ;;
esac

words=()
for word in "$@"; do
    case $word in
    --dry-run) export DRY_RUN=1 ;;
    -*)
        echo "${0##*/}: error: $word: unknown; there are --help and --dry-run" >&2
        exit 2
        ;;
    *) words+=("$word") ;;
    esac
done
set -- ${words[@]+"${words[@]}"}

if [ -n "${DRY_RUN:-}" ]; then
    export PYTHON=python
    exec 9>&1 # commands in pipes are shown, too
    show() {
        local word plain='^[][A-Za-z0-9_./:=,+%@*-]+$' line=
        for word in "$@"; do
            [[ $word =~ $plain ]] || printf -v word '%q' "$word"
            line+="$word "
        done
        echo "$line" >&9
    }
    for name in python torchrun make mkdir ln mv rm tail relu-nmt-{preprocess,train,generate} \
        relu-nmt-{interactive,average,score,sweep,analyze,vision-train,vision-evaluate,vision-probe}; do
        eval "$name() { show $name \"\$@\"; }"
    done
    exec() {
        "$@"
        exit
    }
    tee() { cat > /dev/null; }
fi
