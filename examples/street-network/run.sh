#!/usr/bin/env bash
# Streets that are near each other become a graph, of which the largest connected part is kept.
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

say_which_model
new_session street-network
ask street-network script "$here"
say "The answer: $answer"
expect_answer 60 4 'Elber Lane'
"$belljar" cp street-network:network.tsv "$work/network.tsv"
lines=$(wc -l <"$work/network.tsv")
[ "$lines" = 61 ] || fail "network.tsv has $lines lines, and not one for each of 60 streets and one for the names"
if [ -z "${MODEL:-}" ]; then
    "$belljar" cp street-network:01_street_network.png "$work/network.png"
    [ "$(head -c 4 "$work/network.png" | tail -c 3)" = PNG ] || fail '01_street_network.png is no PNG file'
fi
