# Completion for bash, for every program of k3. Options are those that the program itself prints with --help; where a
# value or a positional stands, bash completes file names. Installed once under each program's name; by hand:
# source drivers/completion.bash

_k3() {
    COMPREPLY=()
    local word=${COMP_WORDS[COMP_CWORD]} program=${COMP_WORDS[0]/#~\//"$HOME/"} options
    [[ $word == -* ]] || return 0
    # In a line of --help an option stands first, behind its short name if it has one.
    options=$("$program" --help 2>/dev/null |
        sed -nE 's/^ {1,4}(-[A-Za-z], *)?(--[A-Za-z][A-Za-z0-9-]*).*/\2/p')
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
}

complete -o default -F _k3 k3 k3-bench k3-conform k3-doctor k3-fetch k3-inspect k3-pack k3-synth k3-trace
