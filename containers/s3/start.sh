#!/bin/sh
# First start: makes the cluster and the one user (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), and for those who only look a second
# key that may only read (READ_ACCESS_KEY, READ_SECRET_KEY). Every start: monitor, OSD, gateway.
# The container ends when one of the three does.
set -eu
D=/data
conf="$D/ceph.conf"
export CEPH_ARGS="-c $conf"
: "${AWS_ACCESS_KEY_ID:?} ${AWS_SECRET_ACCESS_KEY:?}"

if [ ! -f "$D/made" ]; then
    rm -rf "${D:?}"/*
    mkdir -p "$D/mon" "$D/osd" "$D/rgw"
    fsid=$(uuidgen)
    cat >"$conf" <<C
[global]
fsid = $fsid
mon host = v2:127.0.0.1:3300
public addr = 127.0.0.1
cluster addr = 127.0.0.1
keyring = $D/keyring
run dir = /tmp
admin socket = /tmp/\$name.asok
log to file = false
mon cluster log to file = false
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
mon max pg per osd = 1000
osd crush chooseleaf type = 0
osd memory target = 1073741824
bluestore block size = ${S3_BYTES:-64424509440}
mon data avail crit = 1
C
    ceph-authtool --create-keyring "$D/keyring" --gen-key -n mon. --cap mon 'allow *'
    ceph-authtool "$D/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *'
    monmaptool --create --clobber --addv a '[v2:127.0.0.1:3300]' --fsid "$fsid" "$D/monmap"
    ceph-mon --mkfs -i a --monmap "$D/monmap" --keyring "$D/keyring" --mon-data "$D/mon"
fi

ceph-mon -f -i a --mon-data "$D/mon" &
mon=$!
if [ ! -f "$D/made" ]; then
    osd=$(uuidgen)
    timeout 60 ceph osd new "$osd"
    ceph-authtool --create-keyring "$D/osd/keyring" --gen-key -n osd.0
    timeout 60 ceph auth add osd.0 mon 'allow profile osd' osd 'allow *' -i "$D/osd/keyring"
    ceph-osd -i 0 --mkfs --osd-uuid "$osd" --osd-data "$D/osd" --keyring "$D/osd/keyring"
    touch "$D/made"
fi
ceph-osd -f -i 0 --osd-data "$D/osd" --keyring "$D/osd/keyring" &
osd=$!
# Without tcp_nodelay every answer waits 40 ms for the client's acknowledgement.
radosgw -f -n client.admin --rgw-data "$D/rgw" --rgw-frontends 'beast port=7480 tcp_nodelay=1' &
rgw=$!
trap 'kill "$rgw" "$osd" "$mon" 2>/dev/null || true; wait; exit 0' TERM INT
if [ ! -f "$D/user" ]; then
    timeout 120 radosgw-admin -n client.admin user create --uid populora --display-name populora \
        --access-key "$AWS_ACCESS_KEY_ID" --secret-key "$AWS_SECRET_ACCESS_KEY" >/dev/null
    touch "$D/user"
fi
if [ ! -f "$D/reader" ] && [ -n "${READ_ACCESS_KEY:-}" ]; then
    timeout 120 radosgw-admin -n client.admin subuser create --uid populora --subuser reader --key-type s3 --access read \
        --access-key "$READ_ACCESS_KEY" --secret-key "${READ_SECRET_KEY:?}" >/dev/null
    touch "$D/reader"
fi
while kill -0 "$mon" 2>/dev/null && kill -0 "$osd" 2>/dev/null && kill -0 "$rgw" 2>/dev/null; do sleep 2; done
kill "$rgw" "$osd" "$mon" 2>/dev/null || true
exit 1
