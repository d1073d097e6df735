"""External repositories: clone, update, replay of local changes."""
