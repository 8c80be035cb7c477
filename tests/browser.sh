#!/bin/sh
# The web pages in a real browser: live updates, charts, keyboard, contrast, narrow screens, large runs. Screenshots are in
# target/screens. Needs Chromium: takes the one that is installed, or installs Debian's where it may (apt, as root).
#
#   sh tests/browser.sh [FLAG …]   # flags for cargo, which builds the programs
#
# Exits with 3 where there is no Chromium and none can be installed.
set -eu
cd "$(dirname "$0")/.."
for chromium in "${CHROMIUM:-}" chromium chromium-browser google-chrome; do
    [ -n "$chromium" ] && command -v "$chromium" >/dev/null 2>&1 && break
    chromium=
done
if [ -z "$chromium" ]; then
    echo "installing chromium from the distribution"
    if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1; then
        echo "there is no Chromium here, and none could be installed: install the package chromium, or name one with CHROMIUM" >&2
        exit 3
    fi
    chromium=chromium
fi
CHROMIUM=$(command -v "$chromium")
export CHROMIUM
# e2e-muster and view-stage, with the features that all tests have: nothing is built anew where they are built.
cargo test --release --locked --workspace --test web --no-run "$@"
python3 tests/browser.py
