import sys

print("tested", *sys.argv[1:])
