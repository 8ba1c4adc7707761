"""Which files of a project are never code, because they hold secrets.

Most are entries of a home directory. Patterns are those of a shell; `*` does not match a slash.
"""

import re
import stat
from pathlib import Path

from echelon.core.records import open_regular

_NAMES = """
    .ssh
    .gnupg
    .pki
    .password-store
    .config
    .local
    .Xauthority
    .git-credentials
    .vault-token
    id_rsa
    id_dsa
    id_ecdsa
    id_ecdsa_sk
    id_ed25519
    id_ed25519_sk

    .aws
    .azure
    .boto
    .databrickscfg
    .docker
    .dockercfg
    .gcloud
    .gsutil
    .kube
    .oci
    .s3cfg
    .passwd-s3fs
    .rclone.conf
    rclone.conf
    .terraform.d
    .terraformrc
    application_default_credentials.json

    .authinfo
    .authinfo.gpg
    .curlrc
    .msmtprc
    .netrc
    _netrc
    .smbcredentials
    .wgetrc

    .dbt/profiles.yml
    .my.cnf
    .mylogin.cnf
    .pgpass
    .snowflake
    .snowsql

    .cargo/credentials
    .cargo/credentials.toml
    .condarc
    .gem/credentials
    .gradle/gradle.properties
    .m2/settings.xml
    .m2/settings-security.xml
    .npmrc
    .pip/pip.conf
    .pypirc

    .comet.config
    .huggingface
    .kaggle
    .modal.toml
    .ngc
    .sentryclirc
    .streamlit/secrets.toml

    .env
    .env.*
    .envrc
    .Renviron

    .*_history
    .histfile
    .lesshst
    .viminfo
    .zhistory
"""
_EXAMPLE = re.compile(r"\.env\.(example|sample|template)$", re.IGNORECASE)
_KEYS = (".pem", ".key")
"""Files that hold a private key, or something else such as certificates."""
_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY")
_MOST_KEY_BYTES = 1 << 16


def _translate(pattern: str) -> str:
    return re.escape(pattern).replace(r"\*", "[^/]*")


_NAMED = re.compile(
    rf"(.*/)?({'|'.join(map(_translate, _NAMES.split()))})(/.*)?", re.IGNORECASE | re.DOTALL
)


def has_secret_name(path: str) -> bool:
    """Tell whether a path has the name of a file with secrets, or is below such a folder. Pure."""
    return bool(_NAMED.fullmatch(_EXAMPLE.sub("example", path)))


def is_private_key(path: Path) -> bool:
    """Tell whether a file is named like a key, and has a private one in it."""
    if not path.name.lower().endswith(_KEYS):
        return False
    try:
        if not stat.S_ISREG(path.lstat().st_mode):  # a link is copied as a link
            return False
        with open_regular(path) as file:
            return bool(_KEY.search(file.read(_MOST_KEY_BYTES)))
    except OSError:
        return False
