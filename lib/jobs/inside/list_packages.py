"""Print the installed packages, a line each: NAME==VERSION."""

from importlib.metadata import distributions

# of a package in a venv and in the image under it the first one found is imported
found = {each.metadata["Name"]: each.version for each in reversed(list(distributions()))}
for name in sorted(found, key=str.lower):
    print(f"{name}=={found[name]}")
