#!/bin/sh
# Installs the servers that the tests talk to, and nothing when they are there already.
set -eu

PATH="$PATH:/usr/sbin:/usr/local/sbin"
packages=""
command -v nginx >/dev/null || packages="nginx"
test -e /usr/lib/nginx/modules/ngx_http_echo_module.so || packages="$packages libnginx-mod-http-echo"
command -v fusermount3 >/dev/null || packages="$packages fuse3"
command -v memcached >/dev/null || packages="$packages memcached"
command -v rclone >/dev/null || packages="$packages rclone"
test -n "$packages" || exit 0

if ! command -v apt-get >/dev/null; then
    echo "make: the tests need nginx with the echo module, fuse3, memcached and rclone; this system has no apt-get, so please install them" >&2
    exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "make: the tests need $packages; run as root: apt-get install $packages" >&2
        exit 1
    fi
    as_root="sudo"
fi
echo "installing for the tests: $packages"
$as_root apt-get update -q
# shellcheck disable=SC2086  # a list of words on purpose
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y $packages
