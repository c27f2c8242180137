#!/usr/bin/env bash
# Three tasks of a task server, solved with tools of the host and Python expressions.
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

# A copy of this folder, because the server writes its address beside the tools; two runs do not meet. In the copy the
# tools' program has its full path.
cp -r "$here" "$work/spec2"
here=$work/spec2
export BELLJAR_CONFIG=$here/belljar.toml
sed -i "s|\"task_tool.py\"|\"$here/task_tool.py\"|" "$BELLJAR_CONFIG"
rm -f "$here/address"

python3 "$here/task_server.py" "$here/address" &
server=$!
for _ in {1..100}; do
    [ ! -s "$here/address" ] || break
    sleep 0.1
done
[ -s "$here/address" ] || fail 'the task server did not start'

say_which_model
for task in backwards second-item digits; do
    say "Task $task: $(cat "$here/$task/request.txt")"
    python3 "$here/task_tool.py" start "$task" >/dev/null
    new_session "spec2-$task" any
    ask "spec2-$task" "$task" "$here/$task" --dialect next_step
done

score=$(python3 "$here/task_tool.py" score)
say "The task server says: $score"
[[ $score == *'"backwards": "aQue9ScN"'* ]] || fail 'the first secret was not handed in backwards'
[[ $score == *'"score": 1.0,'* ]] || fail 'not all tasks were solved'
