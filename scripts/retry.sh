#!/bin/sh
# Runs a command that downloads something, up to four times, with growing pauses.
for pause in 5 15 45 0; do
    "$@" && exit 0
    [ $pause = 0 ] || { echo "failed: $*; again in $pause s" >&2; sleep $pause; }
done
echo "gave up: $*" >&2
exit 1
