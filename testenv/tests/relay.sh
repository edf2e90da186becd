#!/bin/sh
# Stands in for the binary in relay.rs.
if [ "$1" != run ]; then echo "out $*"; echo "err $POSTRIDER_RABBITMQ_URL" >&2; exit 3; fi
trap 'echo draining >&2; exit 7' TERM
echo "args $* url $POSTRIDER_POSTGRES_URL" >&2
while :; do sleep 0.05; done
