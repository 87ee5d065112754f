#!/bin/sh
# Makes the cluster, the user and the database on the first start; afterwards it only starts. Variables are those of the official
# image: POSTGRES_USER, POSTGRES_PASSWORD, POSTGRES_DB.
set -eu
begun="$PGDATA.begun" # exists until setup is complete: a container killed on the way starts anew
if [ -f "$begun" ]; then rm -rf "$PGDATA"; fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    touch "$begun"
    secret=$(mktemp)
    printf '%s' "${POSTGRES_PASSWORD:?a password is needed}" >"$secret"
    initdb --username="${POSTGRES_USER:-prefect}" --pwfile="$secret" --auth-host=scram-sha-256 --auth-local=trust --encoding=UTF8 >/dev/null
    rm -f "$secret"
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl -w -s -o "-c listen_addresses=''" start
    [ "${POSTGRES_DB:-prefect}" = postgres ] || createdb --username="${POSTGRES_USER:-prefect}" "${POSTGRES_DB:-prefect}"
    pg_ctl -w -s stop
    rm -f "$begun"
fi
exec postgres -c listen_addresses='*' -c max_connections=200
