#!/usr/bin/env bash
# Installs Belljar from a wheel and builds an image for its sandboxes. action.yml says what the variables are.
set -euo pipefail

folder=$RUNNER_TEMP/belljar
mkdir -p "$folder"
wheel=$INPUT_WHEEL
if [ -z "$wheel" ]; then
    tag=
    if [ -n "$INPUT_VERSION" ]; then
        tag=v${INPUT_VERSION#v}
    elif [[ $ACTION_REF =~ ^v[0-9]+\.[0-9]+\.[0-9]+$ ]]; then
        tag=$ACTION_REF
    elif [[ $ACTION_REF =~ ^v[0-9]+$ ]]; then
        # The tag of a major version moves with its releases, and has none of its own.
        tag=$(gh release list --repo "$ACTION_REPOSITORY" --exclude-drafts --exclude-pre-releases --limit 200 \
            --json tagName --jq '.[].tagName' | { grep -x "$ACTION_REF\.[0-9]*\.[0-9]*" || true; } | sort --version-sort | tail -n 1)
        [ -n "$tag" ] || { echo "::error::there is no release of $ACTION_REF" >&2; exit 1; }
    fi
    # Without a tag it is the newest release.
    gh release download ${tag:+"$tag"} --repo "$ACTION_REPOSITORY" --dir "$folder/release" --clobber \
        --pattern "*_$(uname -m).whl" --pattern SHA256SUMS
    (cd "$folder/release" && sha256sum --check --ignore-missing SHA256SUMS)
    wheels=("$folder"/release/*.whl)
    [ ${#wheels[@]} = 1 ] || { echo "::error::the release has ${#wheels[@]} wheels for $(uname -m)" >&2; exit 1; }
    wheel=${wheels[0]}
fi
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check -- "$wheel"
# The command alone, so that the workflow keeps its own Python.
mkdir -p "$folder/bin"
ln -sf "$folder/env/bin/belljar" "$folder/bin/belljar"
echo "$folder/bin" >>"$GITHUB_PATH"
"$folder/bin/belljar" --version
if [ "$INPUT_IMAGE" != none ]; then
    "$folder/bin/belljar" image build "$INPUT_IMAGE"
fi
