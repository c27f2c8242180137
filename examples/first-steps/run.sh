#!/usr/bin/env bash
# Six small asks, each in a session of its own.
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

# step NAME FLAG... -- TEXT...: ask what NAME/request.txt says; the answer has to contain the texts.
step() {
    local name=$1 flags=()
    shift
    while [ "$1" != -- ]; do
        flags+=("$1")
        shift
    done
    shift
    say "$name: $(cat "$here/$name/request.txt")"
    new_session "$name"
    ask "$name" "$name" "$here/$name" "${flags[@]}"
    expect_answer "$@"
}

# is_png SESSION FILE
is_png() {
    "$belljar" cp "$1:$2" "$work/$2"
    [ "$(head -c 4 "$work/$2" | tail -c 3)" = PNG ] || fail "$2 is no PNG file"
}

say_which_model
step hello -- 'Hello, Belljar!'
step random-numbers -- mean
step primes --dialect xml_tags -- 25 97
if [ -z "${MODEL:-}" ]; then
    is_png primes prime_histogram_1.png
fi
step sum -- 5050
step users -- 2 Alice Bob
step batch-json -- station_05.json station_06.json
if [ -z "${MODEL:-}" ]; then
    is_png batch-json 01_mean_temperature.png
fi
