"""`python -m ansorlite`: the command line without the installed script."""

import sys

from ansorlite.cli import main

if __name__ == "__main__":
    sys.exit(main())
