import pathlib
import sys

pathlib.Path("out").mkdir()
pathlib.Path("out/words.txt").write_text(" ".join(sys.argv[1:]))
