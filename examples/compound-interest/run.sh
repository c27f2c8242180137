#!/usr/bin/env bash
# Compound interest, with an error that the model mends.
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

say_which_model
new_session compound-interest
ask compound-interest script "$here" --dialect json_action
say "The answer: $answer"
expect_answer '21,386.41' '6,386.41'
