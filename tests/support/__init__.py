"""What the tests share: what they need of the machine, how they run programs, what they cache."""
