"""Completion of the scripts' options and values on TAB, in bash, zsh and fish."""
