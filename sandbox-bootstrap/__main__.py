"""Entry point: `python3 -I -X utf8 -B <this directory> --bridge PATH [--workspace DIR]`, or, started by the guardian
that is a program of its own, `… --zygote WORKSPACE`.
"""

import sys

if sys.argv[1:2] == ["--zygote"]:
    from belljar_kernel.zygote import main
else:
    from belljar_kernel.guardian import main

sys.exit(main(sys.argv[1:]))
