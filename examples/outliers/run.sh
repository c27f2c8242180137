#!/usr/bin/env bash
# Counts outliers among given values; the answer has a type.
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

say_which_model
new_session outliers
ask outliers script "$here" --context "$here/context.json" --schema "$here/schema.json"
say "The answer, as JSON: $answer"
[ "$answer" = 2 ] || fail "two values are outliers, not $answer"
