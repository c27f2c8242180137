# What the examples' run.sh share; sourced, not run. An example has a daemon and a home of its own that are gone
# afterwards, unless BELLJAR_HOME names a home; the daemon of that one stays, and has to know the example's belljar.toml.
set -euo pipefail

belljar=$(command -v -- "${BELLJAR:-belljar}") || {
    echo 'belljar is not found: name the binary with BELLJAR' >&2
    exit 1
}
here=$(cd -- "$(dirname -- "${BASH_SOURCE[1]}")" && pwd)
# Below /tmp, because the path of a socket has to be short.
work=$(mktemp -d /tmp/belljar-example.XXXXXX)
sessions=()
server=

export BELLJAR_CONFIG=$here/belljar.toml
unset BELLJAR_SESSION
own_home=
if [ -z "${BELLJAR_HOME:-}" ]; then
    own_home=1
    unset BELLJAR_SOCKET
    export BELLJAR_HOME=$work/home
    mkdir -m 700 "$BELLJAR_HOME"
fi

clean_up() {
    for session in "${sessions[@]}"; do
        "$belljar" rm "$session" >/dev/null 2>&1 || true
    done
    if [ -n "$own_home" ]; then
        "$belljar" daemon stop --remove >/dev/null 2>&1 || true
    fi
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap clean_up EXIT

say() { printf '\n# %s\n' "$*"; }

fail() {
    printf '\nnot as expected: %s\n' "$*" >&2
    exit 1
}

say_which_model() {
    if [ -n "${MODEL:-}" ]; then
        say "The model is $MODEL, as MODEL says."
    else
        say 'The model is scripted: its replies are written down in script.toml, only what they do is real.'
        say 'MODEL=real takes the [model.real] of belljar.toml instead, with the key in DASHSCOPE_API_KEY.'
    fi
}

# new_session NAME [IMAGE]: with the files of data/ in its workspace. Any Python will do for `any`.
new_session() {
    sessions+=("$1")
    local image=(--image "${2:-belljar/science}")
    [ "${2:-}" != any ] || image=()
    "$belljar" new "$1" "${image[@]}"
    local file
    for file in "$here"/data/*; do
        if [ -f "$file" ]; then
            "$belljar" cp "$file" "$1:"
        fi
    done
}

# ask SESSION SCRIPT FOLDER [FLAG...]: what the folder's request.txt wants. SCRIPT is the model unless MODEL names another.
# Afterwards `answer` is the final answer, as the journal has it.
ask() {
    local session=$1 script=$2 folder=$3
    shift 3
    "$belljar" ask -s "$session" --model "${MODEL:-$script}" "$@" "$(cat "$folder/request.txt")"
    take_answer "$session"
}

# ask_template SESSION SCRIPT FOLDER TEMPLATE: by a template of the configuration, with the values of context.json. What is
# asked then has to be the folder's request.txt. Otherwise as `ask`.
ask_template() {
    local session=$1 script=$2 folder=$3 template=$4 values
    mapfile -t values < <(python3 -c '
import json, sys

for name, value in json.load(open(sys.argv[1], encoding="utf-8")).items():
    print(f"{name}={json.dumps(value)}")' "$folder/context.json")
    "$belljar" ask -s "$session" --model "${MODEL:-$script}" "@$template" "${values[@]}"
    take_answer "$session"
    "$belljar" logs "$session" --json | python3 -c '
import json, sys

asked = [event["spec"]["text"] for event in map(json.loads, sys.stdin) if event["type"] == "ask_started"][-1]
wanted = open(sys.argv[1], encoding="utf-8").read()
if asked.split() != wanted.split():
    sys.exit(f"the template gives: {asked}")' "$folder/request.txt" || fail 'the template asks something else'
}

take_answer() {
    answer=$("$belljar" logs "$1" --json | python3 -c '
import json, sys

end = [event["end"] for event in map(json.loads, sys.stdin) if event["type"] == "ask_finished"][-1]
if end["outcome"] != "answered":
    sys.exit(f"the ask ended otherwise: {end}")
print(end["answer"] if end["value"] is None else json.dumps(end["value"]))')
}

# expect_answer TEXT...: each has to be in the answer.
expect_answer() {
    local text
    for text; do
        [[ $answer == *"$text"* ]] || fail "the answer does not say '$text': $answer"
    done
}
