"""From the layers of the configuration to one frozen value."""
