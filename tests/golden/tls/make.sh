#!/bin/sh
# Makes the authority and the server's certificate that tests of TLS use, for a hundred years.
set -e
cd "$(dirname "$0")"
new="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
work=$(mktemp -d)
openssl req -x509 $new -keyout "$work/authority.key" -out authority.pem -days 36500 -subj "/CN=tests of tierfs"
openssl req $new -keyout server.key -out "$work/request" -subj /CN=127.0.0.1
printf 'subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n' >"$work/extensions"
openssl x509 -req -in "$work/request" -CA authority.pem -CAkey "$work/authority.key" -set_serial 1 -days 36500 \
    -extfile "$work/extensions" -out server.pem
rm -r "$work"
