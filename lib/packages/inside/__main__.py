"""Call a function of this directory: python __main__.py FILE.FUNCTION [ARGUMENT]...

An extra's file is given with its directory: DIR/FILE.FUNCTION. The files run inside the environment
or with a Python of the host, and only with its standard library. Ctrl-C and an OSError end them
without a traceback.
"""

import importlib
import os
import sys

try:
    directory, name = os.path.split(sys.argv[1])
    # the second one is not there with -I
    sys.path[:0] = filter(None, [directory, os.path.dirname(os.path.abspath(__file__))])
    file, _, function = name.partition(".")
    # bytecode beside the files can be another user's, also that of this file if Python is given the
    # directory
    before, sys.pycache_prefix = sys.pycache_prefix, os.devnull
    module = importlib.import_module(file)
    sys.pycache_prefix = before
    getattr(module, function)(*sys.argv[2:])
except KeyboardInterrupt:
    sys.exit(130)
except OSError as error:
    sys.exit(str(error))
