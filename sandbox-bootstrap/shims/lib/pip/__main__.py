"""`python -m pip`."""

import sys

from pip import main

if __name__ == "__main__":
    sys.exit(main())
