"""How each of the programs here starts, and ends without a traceback."""

import sys


def start(main):
    """Call a program's function with its arguments.

    Parameters
    ----------
    main : callable
        Ctrl-C ends it with 130; what the system refuses is told in one line.
    """
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(str(error))
