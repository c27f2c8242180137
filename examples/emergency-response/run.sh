#!/usr/bin/env bash
# A study with a plan, failures, models, simulations and figures, in Chinese.
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

say_which_model
new_session emergency-response
ask emergency-response script "$here" --language zh
say "The answer: $answer"
expect_answer 贪心 加权评分

say 'The plan, as it is now:'
plan=$("$belljar" plan -s emergency-response)
printf '%s\n' "$plan"
[[ $plan == *对比实验* ]] || fail 'the plan has no task T12'

say 'What changed with its newest version:'
"$belljar" plan -s emergency-response --diff

say 'Its statistics:'
"$belljar" plan -s emergency-response --stats

versions=$("$belljar" plan -s emergency-response --json | python3 -c '
import json, sys

versions = json.load(sys.stdin)["versions"]
if not all(version["changes"] for version in versions[1:]):
    sys.exit("a version changes nothing")
if versions[-1]["statistics"]["__completion_rate"] != 1:
    sys.exit("not all tasks are done: " + json.dumps(versions[-1]["statistics"], ensure_ascii=False))
print(len(versions))')
[ "$versions" -ge 2 ] || fail "there are $versions versions of the plan"

say 'Figures, fetched out of the workspace:'
"$belljar" cp emergency-response: "$work/workspace"
figures=0
for figure in "$work"/workspace/*.png; do
    [ "$(head -c 4 "$figure" | tail -c 3)" = PNG ] || fail "$figure is no PNG file"
    wc -c "$figure"
    figures=$((figures + 1))
done
[ "$figures" -ge 2 ] || fail "there are $figures figures"
