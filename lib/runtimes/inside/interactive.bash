# shellcheck shell=bash
# Read by an interactive shell inside the environment. The user's ~/.bashrc is for the host: its
# changes to PATH and to Python's variables must not put the host's Python before the environment's.
longship_path=$PATH
# shellcheck source=/dev/null
if [[ -r ~/.bashrc ]]; then source ~/.bashrc; fi
PATH=$longship_path:$PATH
# Apptainer sets a prompt of its own when the first one is shown
if [[ ${PROMPT_COMMAND:-} == PS1=* ]]; then unset PROMPT_COMMAND; fi
unset longship_path PYTHONPATH PYTHONHOME
PS1="($LONGSHIP_STACK) ${PS1:-\\w\\$ }"
