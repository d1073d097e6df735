# Completion of Longship's scripts in fish: python3 completion.py fish | source
# What completes Python itself stays: all that is added here is for these scripts alone.

# _longship_register NAME...: complete these commands.
function _longship_register
    for name in $argv
        complete --command $name --no-files --keep-order --condition '_longship_find >/dev/null' \
            --arguments '(_longship_offer)'
    end
end

# _longship_find: print what answers, a word a line; fails unless one of the scripts is on the line.
function _longship_find
    set -l words (commandline --tokenize --cut-at-cursor --current-process)
    set -l i 1
    set -l command
    if string match --quiet --regex '^python(3(\.\d+)?)?$' -- (string split --right --max 1 / -- $words[1])[-1]
        set command (_longship_path $words[1])
        set i 2
        while string match --quiet --regex '^-[bBdEhiIOPqsSuvx]+$' -- $words[$i]
            set i (math $i + 1)
        end
    end
    set -q words[$i]; or return 1
    set -l script (_longship_path $words[$i])
    if test $i = 1; and not string match --quiet '*/*' -- $script
        set script (command --search -- $script); or return 1
    end
    string match --quiet '*/*' -- $script; or set script ./$script
    set -l clone (string replace --regex '/[^/]*$' '' -- $script)
    set -l name (string replace --regex '.*/' '' -- $script)
    string match --quiet '*.py' -- $name; or return 1
    test -f $clone/completion.py -a -f $clone/lib/commands/$name; or return 1
    printf '%s\n' $command $clone/completion.py answer $name
    # as they could be typed, like the word at the cursor
    set -e words[1..$i]
    string escape -- $words
    commandline --current-token --cut-at-cursor
end

# _longship_path WORD: print what a word names; nothing in it is evaluated but ~/ and $HOME/.
function _longship_path
    string replace --regex '^(~|\$HOME)/' "$HOME/" -- $argv[1]
end

# _longship_offer: print what can stand at the cursor.
function _longship_offer
    set -l asked (_longship_find); or return
    set -l word (commandline --current-token --cut-at-cursor)
    for line in ($asked 2>/dev/null)
        set -l part (string split \t -- $line)
        switch $part[1]
            case plain
                printf '%s\t%s\n' $part[2] $part[3]
            case file
                set -l typed (string replace -- $part[2] '' $word)
                printf '%s\n' $part[2](complete --do-complete "_longship_no_command $typed")
            case dir
                __fish_complete_directories $word ''
            case command
                set -l words (commandline --tokenize --cut-at-cursor --current-process | string escape)
                set -l own
                test $part[2] -gt 0; and set own $words[(math 0 - $part[2])..-1]
                complete --do-complete "$own $word"
        end
    end
end
