"""Container runtimes, and the environment inside, which is the same for all of them."""
