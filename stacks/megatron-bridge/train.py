"""Train with a recipe of Megatron-Bridge, by its own runner.

    torchrun stacks/megatron-bridge/train.py --recipe NAME [OPTION...] [KEY=VALUE...]

The arguments are those of Megatron-Bridge's `scripts/training/run_recipe.py`.
"""

if __name__ == "__main__":  # the processes that write a checkpoint import this file, too
    from longship_bridge import main

    main()
