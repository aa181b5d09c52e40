# Answer --help for the scripts that source this file before anything else: print their first
# comment, with "usage:" before each example, and the lines that read settings, with the defaults.
case " $* " in
*" --help "* | *" -h "*)
    sed -nE '1d; /^#/!q; s/^#   +/usage: /; s/^# ?//; p' "$0"
    sed -nE 's/^ *(export )?([A-Z_]+=\$\{)/  \2/p' "$0"
    exit
    ;;
esac
