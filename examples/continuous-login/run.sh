#!/usr/bin/env bash
# Days in a row, found with SQL in a sandbox without a database server.
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

say_which_model
new_session continuous-login
ask continuous-login script "$here"
say "The answer: $answer"
expect_answer u001 2025-01-04 u003 2025-01-03
