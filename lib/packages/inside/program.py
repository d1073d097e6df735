"""The start of each program of this directory."""

import sys


def start(main):
    """Call a function with the arguments; end without a traceback after Ctrl-C or an OSError."""
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(str(error))
