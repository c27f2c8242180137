#!/usr/bin/env bash
# Three tables of a town: what hangs together by the boxes of addresses, and what by houses.
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

say_which_model
new_session street-houses any
ask_template street-houses script "$here" network
say "The answer: $answer"
expect_answer 14 20 'Linnes Road'
"$belljar" cp street-houses:filtered "$work/filtered"
lines=$(cat "$work"/filtered/{streets,addresses,houses}.tsv | wc -l)
[ "$lines" = 108 ] || fail "the tables have $lines lines, and not the names of columns, 20 streets, 20 addresses and 65 houses"
[ "$(head -c 3 "$work/filtered/streets.tsv")" = $'\xef\xbb\xbf' ] || fail 'streets.tsv has no byte order mark'
