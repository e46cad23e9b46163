#!/bin/sh
# Makes the keys that tests of signatures use.
set -e
cd "$(dirname "$0")"
for key in release other; do
    openssl genpkey -algorithm ed25519 -out $key.pem
    openssl pkey -in $key.pem -pubout -out $key.pub.pem
done
