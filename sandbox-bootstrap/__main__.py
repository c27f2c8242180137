"""Entry point of Python's first process, which the guardian starts: `… <this directory> --zygote WORKSPACE`."""

import sys

from belljar_kernel.zygote import main

main(sys.argv[2])
