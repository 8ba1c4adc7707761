# Starts the sshd $1 of a sandbox; needs root and a mount namespace of its own.
set -e
# Without PAM, sshd refuses accounts whose password is locked, such as root's on Ubuntu.
mount --bind '/var/lib/echelon/sandbox/demo/ssh/shadow' /etc/shadow
# Logins to the sandbox do not belong in the machine's records.
for record in /run/utmp /var/log/wtmp /var/log/btmp /var/log/lastlog; do
    own='/var/lib/echelon/sandbox/demo/ssh'/${record##*/}
    : > "$own"
    [ ! -e "$record" ] || mount --bind "$own" "$record"
done
# sshd changes its root directory to this one, which Debian's service creates.
mkdir -p -m 0755 /run/sshd
exec "$1" -D -e -f '/var/lib/echelon/sandbox/demo/ssh/sshd_config'
