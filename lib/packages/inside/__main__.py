"""Call a function of this directory: python lib/packages/inside FILE.FUNCTION [ARGUMENT]...

The files run inside the environment or with a Python of the host, and only with its standard
library. Ctrl-C and an OSError end them without a traceback.
"""

import importlib
import sys

try:
    file, _, function = sys.argv[1].partition(".")
    getattr(importlib.import_module(file), function)(*sys.argv[2:])
except KeyboardInterrupt:
    sys.exit(130)
except OSError as error:
    sys.exit(str(error))
