"""Print the installed packages, a line each: NAME==VERSION."""

from importlib.metadata import distributions

found = {each.metadata["Name"]: each.version for each in distributions()}
for name in sorted(found, key=str.lower):
    print(f"{name}=={found[name]}")
