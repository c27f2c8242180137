#!/usr/bin/env bash
# Runs jobs, annotates those that do not pass, and exits as `belljar job run` does. action.yml says what the variables are.
set -euo pipefail

words=()
[ -z "$INPUT_SPEC" ] || words+=(--spec "$INPUT_SPEC")
[ -z "$INPUT_ARTIFACTS" ] || words+=(--artifacts-to "$INPUT_ARTIFACTS")
while IFS= read -r word; do
    [ -z "$word" ] || words+=("$word")
done <<<"$INPUT_ARGUMENTS"
exec belljar job run --github --junit "$INPUT_REPORT" "${words[@]}"
