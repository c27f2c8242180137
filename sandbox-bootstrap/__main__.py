"""Entry point: `python3 -I -X utf8 -B <this directory> --bridge PATH [--workspace DIR]`."""

import sys

from belljar_kernel.guardian import main

sys.exit(main(sys.argv[1:]))
