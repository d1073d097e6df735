"""Call a function of this directory: python lib/packages/inside FILE.FUNCTION [ARGUMENT]...

An extra's file is given with its directory: DIR/FILE.FUNCTION. The files run inside the environment
or with a Python of the host, and only with its standard library. Ctrl-C and an OSError end them
without a traceback.
"""

import importlib
import os
import sys

try:
    directory, name = os.path.split(sys.argv[1])
    sys.path[:0] = filter(None, [directory])
    file, _, function = name.partition(".")
    getattr(importlib.import_module(file), function)(*sys.argv[2:])
except KeyboardInterrupt:
    sys.exit(130)
except OSError as error:
    sys.exit(str(error))
