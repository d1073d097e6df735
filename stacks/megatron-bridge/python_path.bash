# shellcheck shell=bash
# Megatron-Bridge and Megatron-Core for the scripts of this stack. They precede packages of the
# image with these names.

export PYTHONPATH=${LONGSHIP_REPOSITORIES:?}/Megatron-Bridge/src:$LONGSHIP_REPOSITORIES/Megatron-LM${PYTHONPATH:+:$PYTHONPATH}
