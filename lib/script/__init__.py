"""How a script is made, shown and run."""
